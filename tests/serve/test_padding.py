"""Texts of like length together."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tanbr.serve.padding import like_lengths

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=9)


def cost(lengths: list[int], groups: list[list[int]], fixed: int) -> int:
    return sum(max(lengths[i] for i in group) * len(group) + fixed for group in groups)


@given(lengths=LENGTHS, most=st.integers(1, 10), fixed=st.integers(0, 60))
def test_every_text_is_in_one_group_and_none_is_too_large(lengths: list[int], most: int, fixed: int) -> None:
    groups = like_lengths(lengths, most=most, fixed=fixed)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(1 <= len(group) <= most for group in groups)


@given(lengths=LENGTHS, most=st.integers(1, 10), fixed=st.integers(0, 60))
def test_no_other_cut_costs_less(lengths: list[int], most: int, fixed: int) -> None:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    inside = range(1, len(lengths))
    cuts = [(0, *places, len(lengths)) for size in range(len(lengths)) for places in combinations(inside, size)]
    ways = [[order[a:b] for a, b in pairwise(cut)] for cut in cuts]
    best = min(cost(lengths, way, fixed) for way in ways if all(len(group) <= most for group in way))
    assert cost(lengths, like_lengths(lengths, most=most, fixed=fixed), fixed) == best


def test_a_batch_of_one_length_stays_as_it_is() -> None:
    assert like_lengths([7, 7, 7], most=8) == [[0, 1, 2]]
    assert like_lengths([60, 3, 61, 2] * 8, most=32) == [
        [*range(3, 32, 4), *range(1, 32, 4)],
        [*range(0, 32, 4), *range(2, 32, 4)],
    ]
