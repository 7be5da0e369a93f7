"""Slow references in float64 on whole tensors, for every method that needs nothing; and what holds for all of them.

The tolerance is an error bound: a merge in float32 of r experts does at most some n roundings a weight, each of half a
unit in the last place of what is added up, whose size is at most the largest weight times what the method scales by.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import tanbr
from moe.tiny import K, build, expert_values
from tanbr.merge import Moe

EPS = torch.finfo(torch.float32).eps


BLENDS = [[0.25] * K, [0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0]]


class Case(NamedTuple):
    """The experts of one dense tensor (K, …) in float64, a blend, and the base."""

    experts: Tensor
    blend: Tensor
    base: Tensor


def cases(moe: Moe, blend: list[float]) -> dict[str, Case]:
    alone = [dict(tanbr.open(moe.path).tensors(np.eye(K)[k], changing=True)) for k in range(K)]
    stacked = {name: torch.stack([one[name] for one in alone]).double() for name in alone[0]}
    weights = torch.tensor(blend, dtype=torch.float64)
    return {name: Case(experts, weights, experts.mean(dim=0)) for name, experts in stacked.items()}


@pytest.fixture(scope="session")
def exact(tmp_path_factory):
    """A checkpoint whose experts are multiples of 1/1024: their sums are exact in float32."""
    model, rng = build("bert_moe"), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for values in expert_values(model):
            values.copy_(torch.randint(-4096, 4096, values.shape, generator=rng) / 1024)
    folder = tmp_path_factory.mktemp("exact")
    model.save_pretrained(folder)
    return folder


def compare(moe: Moe, blend: list[float], reference, *, roundings: float) -> None:
    tensors = dict(moe.tensors(blend, changing=True))
    for name, case in cases(moe, blend).items():
        expected = reference(case)
        bound = roundings * EPS * float(max(case.experts.abs().max(), case.base.abs().max()))
        assert float((tensors[name].double() - expected).abs().max()) <= bound, name


@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize("blend", BLENDS)
def test_task_arithmetic(related, blend, scale) -> None:
    def reference(c: Case) -> Tensor:
        return c.base + scale * torch.einsum("k,k...->...", c.blend, c.experts - c.base)

    moe = tanbr.open(related, method=f"task-arithmetic:scale={scale}")
    compare(moe, blend, reference, roundings=(K + 2) * (2 * scale + 1))


def trimmed(differences: Tensor, density: float) -> Tensor:
    """Keep the largest, tensor by tensor, as mergekit's magnitude pruning does."""
    flat = differences.flatten(1)
    keep = flat.abs().topk(max(1, int(density * flat.shape[1])), dim=1).indices
    return torch.zeros_like(flat).scatter(1, keep, flat.gather(1, keep)).view_as(differences)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("density", [0.2, 1.0])
@pytest.mark.parametrize("blend", [[0.25] * K, [0.5, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]])
def test_ties_as_mergekit_weighs_it(exact, blend, density, normalise) -> None:
    def reference(c: Case) -> Tensor:
        experts, weights = c.experts[c.blend > 0], c.blend[c.blend > 0]
        kept = trimmed(experts - c.base, density)
        column = weights.view(-1, *[1] * (experts.dim() - 1))
        agrees = kept.sign() == torch.where((column * kept).sum(dim=0) >= 0, 1.0, -1.0)
        share = (column * agrees).sum(dim=0)
        mixed = (column * kept * agrees).sum(dim=0)
        if normalise:
            mixed = mixed / torch.where(share.abs() < 1e-8, 1.0, share)
        return c.base + 1.5 * mixed

    # powers of two, and experts of few bits: every sum is exact, so that no election hangs on rounding
    method = f"ties:density={density}:scale=1.5:normalise={normalise}"
    compare(tanbr.open(exact, method=method), blend, reference, roundings=16)


@pytest.mark.parametrize("method", ["ties:density=1", "task-arithmetic:scale=1"])
@pytest.mark.parametrize("model_type", ["deepseek_v3", "switch_transformers", "gpt_oss"])
def test_folds_regions_and_other_layouts(model_type, method, tmp_path) -> None:
    """A scaled piece beside a shared expert, a fold, transposed experts: one expert alone is that expert."""
    build(model_type).save_pretrained(tmp_path / "moe")
    got, wanted = (
        dict(tanbr.open(tmp_path / "moe", method=name).tensors([0.0, 0.0, 0.0, 1.0])) for name in (method, "average")
    )
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        bound = 32 * EPS * float(wanted[name].abs().max()) * 4  # of the experts' mean, which is added and taken off
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=bound)
