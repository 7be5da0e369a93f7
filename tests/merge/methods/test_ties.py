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


@pytest.mark.parametrize("density", [0.2, 1.0])
@pytest.mark.parametrize("blend", [[0.25] * K, [0.5, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]])
def test_ties_as_mergekit_weighs_it(related, blend, density) -> None:
    def reference(c: Case) -> Tensor:
        experts, weights = c.active
        kept = trimmed(experts - c.base, density)
        column = weights.view(-1, *[1] * (experts.dim() - 1))
        total = (column * kept).sum(dim=0)
        sign = torch.where(total >= 0, 1.0, -1.0)
        agrees = kept.sign() == sign
        share = (column * agrees).sum(dim=0)
        mixed = (column * kept * agrees).sum(dim=0) / torch.where(share.abs() < 1e-8, 1.0, share)
        return c.base + 1.5 * mixed

    # powers of two, and experts of few bits: every sum is exact, so that no election hangs on rounding
    compare(tanbr.open(exact(related), method=f"ties:density={density}:scale=1.5"), blend, reference, roundings=16)


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
