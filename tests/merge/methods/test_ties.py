import pytest
import torch
from torch import Tensor

import tanbr
from merge.methods.reference import Case, compare
from moe.tiny import K, build


def trimmed(differences: Tensor, density: float) -> Tensor:
    """Keep the largest, tensor by tensor, as mergekit's magnitude pruning does."""
    flat = differences.flatten(1)
    keep = flat.abs().topk(max(1, int(density * flat.shape[1])), dim=1).indices
    return torch.zeros_like(flat).scatter(1, keep, flat.gather(1, keep)).view_as(differences)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("density", [0.2, 1.0])
@pytest.mark.parametrize("blend", [[0.25] * K, [0.5, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]])
def test_ties_as_mergekit_weighs_it(related, blend, density, normalise) -> None:
    def reference(c: Case) -> Tensor:
        experts, weights = c.active
        kept = trimmed(experts - c.base, density)
        column = weights.view(-1, *[1] * (experts.dim() - 1))
        total = (column * kept).sum(dim=0)
        sign = torch.where(total >= 0, 1.0, -1.0)
        agrees = kept.sign() == sign
        share = (column * agrees).sum(dim=0)
        mixed = (column * kept * agrees).sum(dim=0)
        if normalise:
            mixed = mixed / torch.where(share.abs() < 1e-8, 1.0, share)
        return c.base + 1.5 * mixed

    # powers of two, and experts of few bits: every sum is exact, so that no election hangs on rounding
    method = f"ties:density={density}:scale=1.5:normalise={normalise}"
    compare(tanbr.open(exact(related), method=method), blend, reference, roundings=16)


def test_a_blend_near_one_expert_is_near_it_too(related) -> None:
    """Normalised, it is not: where the expert's own difference is trimmed, others enter whole."""

    def step(method: str) -> float:
        moe = tanbr.open(exact(related), method=method)
        near = [1 - 3 / 1024, 1 / 1024, 1 / 1024, 1 / 1024]
        alone, beside = (dict(moe.tensors(blend, changing=True)) for blend in ([1.0, 0.0, 0.0, 0.0], near))
        return max(float((alone[name] - beside[name]).abs().max()) for name in alone)

    # experts are below 4 in size, their differences from the mean below 8: 3/1024 of them at most, and as much again
    # where the little weight of the others decides a sign that the first one leaves open
    assert step("ties:density=0.5") <= 8 * (3 + 3) / 1024
    assert step("ties:density=0.5:normalise=true") > 1


def exact(folder):
    """Copy a checkpoint with experts rounded to multiples of 1/1024, whose sums are exact in float32."""
    target = folder.parent / "exact"
    if not target.exists():
        model = build("bert_moe")
        rng = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for layer in model.bert.encoder.layer:
                for linear in (layer.intermediate.dense, layer.output.dense):
                    for values in linear.parameters():
                        values.copy_(torch.randint(-4096, 4096, values.shape, generator=rng) / 1024)
        model.save_pretrained(target)
    return target
