import math

import torch

import tanbr
from merge.methods.reference import EPS, cases


def test_dare_drops_its_share_and_is_right_on_average(related) -> None:
    blend, density = [0.5, 0.5, 0.0, 0.0], 0.25
    moe = tanbr.open(related, method=f"dare:density={density}")
    tensors = dict(moe.tensors(blend, changing=True))
    kept = total = 0
    for name, c in cases(moe, [1.0, 0.0, 0.0, 0.0]).items():
        alone = dict(moe.tensors([1.0, 0.0, 0.0, 0.0], changing=True))[name].double()
        second = dict(moe.tensors([0.0, 1.0, 0.0, 0.0], changing=True))[name].double()
        difference = (c.experts[0] - c.base) / density
        is_kept = (alone - c.base - difference).abs() <= 16 * EPS * float(c.experts.abs().max()) / density
        is_dropped = (alone - c.base).abs() <= 16 * EPS * float(c.experts.abs().max()) / density
        assert (is_kept | is_dropped).all()  # every weight is one or the other
        bound = 16 * EPS * float(c.experts.abs().max()) / density
        assert (
            float((tensors[name].double() - (alone + second) / 2).abs().max()) <= bound
        )  # the same weights, any blend
        kept += int((is_kept & ~is_dropped).sum())
        total += alone.numel()
    deviation = math.sqrt(total * density * (1 - density))
    assert abs(kept - density * total) < 6 * deviation


def test_dare_repeats_itself_and_another_seed_drops_others(related) -> None:
    first, again, other = (
        torch.cat([t.flatten() for _, t in tanbr.open(related, method=f"dare:seed={seed}").tensors(changing=True)])
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
