"""RegMean: by hand for one layer, then on whole models of both families."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elsewhere import elsewhere
from lab.rivals.probed import FAMILIES, saved, some_probes
from moe.tiny import K
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.rivals.regmean import Regression, grams, measure, regmean
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.measure import experts_alone, linears
from tanbr.moe import embedded
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> Moe:
    return saved(tmp_path_factory.mktemp("moe"), request.param)


def test_regmean_by_hand() -> None:
    regression = Regression(shrinkage=0.5)
    regression.add(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 2.0], [2.0, 1.0]]).double())  # 2 shrinks to 1
    regression.add(torch.tensor([[0.0, 2.0]]), torch.eye(2).double())
    # (4 1; 1 2) w = (3 1; 1 1)(2 0) + (0 2) = (6 4), so w = (8 10) / 7
    expected = torch.tensor([[8.0, 10.0]]).double() / 7
    torch.testing.assert_close(regression.solve(torch.zeros(1, 2)), expected, rtol=1e-5, atol=1e-5)


@given(seeds)
@few
def test_equal_information_is_the_average(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weights, inputs = torch.randn(3, 4, 5, generator=rng), torch.randn(9, 5, generator=rng).double()
    regression = Regression(0.9)
    for weight in weights:
        regression.add(weight, inputs.T @ inputs)
    average = weights.mean(dim=0)
    torch.testing.assert_close(regression.solve(average).float(), average, rtol=1e-3, atol=1e-4)


@given(seeds, st.integers(1, 3))
@few
def test_one_expert_or_equal_ones_come_back(seed: int, experts: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weight, regression = torch.randn(4, 5, generator=rng), Regression(0.9)
    for _ in range(experts):
        x = torch.randn(9, 5, generator=rng).double()
        regression.add(weight, x.T @ x)
    torch.testing.assert_close(regression.solve(weight).float(), weight, rtol=1e-3, atol=1e-4)


def test_what_no_expert_has_seen_is_averaged() -> None:
    regression = Regression(1.0)
    for value in (1.0, 3.0):
        regression.add(torch.full((1, 2), value), torch.tensor([[value, 0.0], [0.0, 0.0]]).double())
    assert regression.solve(torch.full((1, 2), 2.0))[0, 1] == pytest.approx(2.0)


def test_regmean_solves_every_layers_regression(family: Moe) -> None:
    probes = some_probes(family)
    merged = regmean(family, probes, shrinkage=1.0)
    slope: dict[str, Tensor] = {}
    scale: dict[str, Tensor] = {}
    for model, own in experts_alone(family, probes):
        layers = linears(family, model)
        assert len(layers) == sum("bias" not in part.role for site in family.sites for part in site.parts)
        for name, gram in grams(model, layers, own).items():
            away = merged.get_parameter(f"{name}.weight") - layers[name].weight
            slope[name] = slope.get(name, 0) + away.double() @ gram  # of Σ_k mean ‖W x − W_k x‖² / 2
            scale[name] = scale.get(name, 0) + (away.double() @ gram).abs()
    for name, value in slope.items():
        assert value.abs().max() < 1e-3 * scale[name].max()


def test_only_the_weights_of_ffns_differ_from_the_average(family: Moe) -> None:
    average = family.dense().state_dict()
    merged = regmean(family, some_probes(family)).state_dict()
    changed = {name for name, value in merged.items() if not torch.equal(value, average[name])}
    assert changed
    assert changed <= {piece.target for piece in family.plan.blended}
    assert not any(name.endswith("bias") for name in changed)
    assert all(value.isfinite().all() for value in merged.values())


def test_regmean_answers_better_than_the_average(moe: Moe) -> None:
    space = LabelSpace(tiny.TASKS)
    own = read_card(moe.path).experts_of([task.name for task in tiny.TASKS])
    probes = probes_of(moe, {t.name: tiny.generate(t.name, 32, seed=11) for t in tiny.TASKS}, space=space, own=own)
    rows = [row for task in tiny.TASKS for row in tiny.generate(task.name, 40, seed=12)]
    mine = {t.name: [r for r in rows if r.task == t.name] for t in tiny.TASKS}
    asked = probes_of(moe, mine, space=space, own=own)

    def reward(model: Any) -> float:
        total = 0.0
        for task, own in zip(tiny.TASKS, asked, strict=True):
            ordered = sorted((r for r in rows if r.task == task.name), key=lambda row: len("".join(row.text)))
            with torch.inference_mode():
                logits = torch.cat([model(**probe.inputs).logits for probe in own]).double().numpy()
            total += space.rewards(ordered, space.answers(ordered, logits)).sum()
        return total / len(rows)

    assert K != moe.num_experts == len(probes)
    assert reward(regmean(moe, probes)) > reward(moe.dense()) + 0.03


@pytest.mark.parametrize("merged", [False, True])
def test_what_is_measured_elsewhere_is_written_alike(merged: bool, tmp_path: Path) -> None:
    rows = {task.name: tiny.generate(task.name, 3, seed=1) for task in tiny.TASKS}
    for name in ("here", "there"):
        shutil.copytree(embedded.path(), tmp_path / name)

    def measured(name: str, device: str) -> bytes:
        moe = open_moe(tmp_path / name, device=device)
        probes = probes_of(moe, rows, space=LabelSpace(tiny.TASKS), own=range(8))
        return (measure(moe, probes, rows=3, merged=merged) / "model.safetensors").read_bytes()

    with elsewhere() as device:
        assert measured("there", str(device)) == measured("here", "cpu")
