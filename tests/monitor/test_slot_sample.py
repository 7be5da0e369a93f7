"""The sample of the open slot: which requests stay depends neither on order nor on who saw them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.monitor.slot_sample import SlotSample


def filled(keys: list[int], capacity: int = 8) -> SlotSample:
    slot = SlotSample(2, capacity)
    for key in keys:
        slot.add(np.array([key], dtype=np.uint64), np.array([[key / 100, 1 - key / 100]]), np.array([key % 2 == 0]))
    return slot


@settings(max_examples=30)
@given(st.lists(st.integers(0, 99), max_size=60), st.lists(st.integers(0, 99), max_size=60))
def test_slots_merge_and_order_does_not_matter(one: list[int], two: list[int]) -> None:
    left = filled(one)
    left.merge(filled(two))
    whole = filled(sorted(one + two))
    for mine, theirs in zip(left.read(), whole.read(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
    assert left.requests == whole.requests == len(one) + len(two)


def test_a_large_slot_is_sampled_and_repeats_are_counted() -> None:
    slot = filled([*range(100), *range(100), 3])
    posteriors, novelty, counts = slot.read()
    assert counts.tolist() == [2, 2, 2, 3, 2, 2, 2, 2]
    assert posteriors[:, 0].tolist() == [key / 100 for key in range(8)]
    assert novelty.tolist() == [1, 0] * 4
    assert slot.requests == 201
