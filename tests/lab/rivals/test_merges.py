"""Merges made from data, Fisher's and RegMean: by hand for one layer, then on whole models of both families."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elsewhere import elsewhere
from lab.rivals.probed import FAMILIES, saved, some_probes
from tanbr.errors import DataError
from tanbr.lab.rivals.fisher import FisherMean, diagonal, fisher
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.rivals.regmean import Regression, grams, measure, regmean
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.measure import experts_alone, linears
from tanbr.moe import embedded
from tanbr.tasks.metrics import LabelSpace

merges = pytest.mark.parametrize("merge", [fisher, regmean])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> Moe:
    return saved(tmp_path_factory.mktemp("moe"), request.param)


def test_fisher_by_hand() -> None:
    mean = FisherMean()
    mean.add(torch.tensor([0.0, 10.0]), torch.tensor([3.0, 1.0]))  # means of 2: shares 1.5 and 0.5
    mean.add(torch.tensor([4.0, 20.0]), torch.tensor([50.0, 150.0]))  # means of 100: shares 0.5 and 1.5
    torch.testing.assert_close(mean.value, torch.tensor([1.0, 17.5]), rtol=0, atol=1e-4)


def test_regmean_by_hand() -> None:
    regression = Regression(shrinkage=0.5)
    regression.add(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 2.0], [2.0, 1.0]]).double())  # 2 shrinks to 1
    regression.add(torch.tensor([[0.0, 2.0]]), torch.eye(2).double())
    # (4 1; 1 2) w = (3 1; 1 1)(2 0) + (0 2) = (6 4), so w = (8 10) / 7
    expected = torch.tensor([[8.0, 10.0]]).double() / 7
    torch.testing.assert_close(regression.solve(torch.zeros(1, 2)), expected, rtol=1e-5, atol=1e-5)


def test_what_no_expert_has_seen_is_averaged() -> None:
    mean, nothing, regression = FisherMean(), FisherMean(), Regression(1.0)
    for value in (1.0, 3.0):
        mean.add(torch.full((2,), value), torch.tensor([value, 0.0]))
        nothing.add(torch.full((2,), value), torch.zeros(2))
        regression.add(torch.full((1, 2), value), torch.tensor([[value, 0.0], [0.0, 0.0]]).double())
    assert mean.value[1] == pytest.approx(2.0)
    assert nothing.value.tolist() == [2.0, 2.0]
    assert regression.solve(torch.full((1, 2), 2.0))[0, 1] == pytest.approx(2.0)


def test_the_information_is_that_of_single_rows(family: Moe) -> None:
    model, own = next(experts_alone(family, some_probes(family)))
    information = diagonal(model, linears(family, model), own)
    slow = {name: torch.zeros_like(value) for name, value in information.items()}
    for probe in own:
        for row in range(len(probe.inputs["input_ids"])):
            alone = {name: value[row : row + 1] for name, value in probe.inputs.items()}
            for surprise in probe.surprise(model(**alone).logits):
                weights = [model.get_parameter(name) for name in slow]
                slopes = torch.autograd.grad(surprise.sum(), weights, retain_graph=True)
                for name, slope in zip(slow, slopes, strict=True):
                    slow[name] += slope.square()
    assert all(value.sum() > 0 for value in slow.values())
    for name, value in slow.items():
        torch.testing.assert_close(information[name], value, rtol=1e-3, atol=1e-6 * float(value.max()))


def test_regmean_solves_every_layers_regression(family: Moe) -> None:
    probes = some_probes(family)
    merged = regmean(family, probes, shrinkage=1.0)
    slope: dict[str, Tensor] = {}
    scale: dict[str, Tensor] = {}
    for model, own in experts_alone(family, probes):
        layers = linears(family, model)
        assert len(layers) == sum("bias" not in part.role for site in family.sites for part in site.parts)
        for name, gram in grams(model, layers, own).items():
            away = (merged.get_parameter(f"{name}.weight") - layers[name].weight).double() @ gram
            slope[name] = slope.get(name, 0) + away  # of Σ_k mean ‖W x − W_k x‖² / 2
            scale[name] = scale.get(name, 0) + away.abs()
    for name, value in slope.items():
        assert value.abs().max() < 1e-3 * scale[name].max()


@merges
def test_every_expert_needs_rows(family: Moe, merge) -> None:
    for probes in (some_probes(family)[:-1], [*some_probes(family)[:-1], []]):
        with pytest.raises(DataError, match="each of the 4 experts"):
            merge(family, probes)


@merges
def test_only_the_ffns_differ_from_the_average(family: Moe, merge) -> None:
    average = family.dense().state_dict()
    merged = merge(family, some_probes(family)).state_dict()
    changed = {name for name, value in merged.items() if not torch.equal(value, average[name])}
    assert changed
    assert changed <= {piece.target for piece in family.plan.blended}
    assert merge is fisher or not any(name.endswith("bias") for name in changed)
    assert all(value.isfinite().all() for value in merged.values())


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
