"""Merges made from data, Fisher's and RegMean: by hand for one layer, then on whole models of both families."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moe.tiny import build
from tanbr.errors import DataError
from tanbr.lab.rivals.fisher import diagonal, fisher
from tanbr.lab.rivals.probes import Probe
from tanbr.lab.rivals.regmean import regmean
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.measure import experts_alone, grams, linears

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert_moe", {}),
    "t5": ("t5_moe", {"decoder_start_token_id": 0}),
    "t5 gated": ("t5_moe", {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}),
}


def some_probes(moe: Moe) -> list[list[Probe]]:
    """Two batches of random tokens per expert, with padding; the surprise is that of the first answer."""
    rng = torch.Generator().manual_seed(3)

    def probe(rows: int) -> Probe:
        mask = torch.ones(rows, 6, dtype=torch.int64)
        mask[0, 3:] = 0
        inputs = {"input_ids": torch.randint(3, 64, (rows, 6), generator=rng) * mask, "attention_mask": mask}
        if moe.config["is_encoder_decoder"]:
            inputs["labels"] = torch.randint(3, 64, (rows, 4), generator=rng)
            inputs["labels"][-1, 2:] = -100
            return Probe(inputs, lambda logits: -logits[:, :2].log_softmax(-1)[..., 0].T)
        return Probe(inputs, lambda logits: -logits.log_softmax(-1).T)

    return [[probe(2), probe(3)] for _ in range(moe.num_experts)]


def saved(folder: Path, name: str) -> Moe:
    """Write a tiny MoE of a family, and open it."""
    model_type, changes = FAMILIES[name]
    build(model_type, **changes).save_pretrained(folder / "moe")
    return open_moe(folder / "moe")


merges = pytest.mark.parametrize("merge", [fisher, regmean])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> Moe:
    return saved(tmp_path_factory.mktemp("moe"), request.param)


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
        assert len(layers) == sum("bias" not in role for site in family.sites for role in site.parts)
        for name, gram in grams(model, layers, [probe.inputs for probe in own]).items():
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
