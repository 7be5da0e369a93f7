"""Rows of unequal length behave as lists of lists do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tanbr.monitor.ragged import Ragged

rows = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6)


def ragged(lists: list[list[int]]) -> Ragged:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    return Ragged(np.array([value for row in lists for value in row], dtype=np.uint64), starts)


def listed(values: Ragged) -> list[list[int]]:
    return [values.values[one:two].tolist() for one, two in zip(values.starts[:-1], values.starts[1:], strict=True)]


@given(rows, st.data())
def test_take_and_lengths_and_owners(lists: list[list[int]], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    values = ragged(lists)
    assert listed(values.take(np.array(wanted, dtype=np.int64))) == [lists[row] for row in wanted]
    assert values.lengths.tolist() == [len(row) for row in lists]
    assert values.owners.tolist() == [place for place, row in enumerate(lists) for _ in row]


@given(rows, rows)
def test_concatenate(one: list[list[int]], two: list[list[int]]) -> None:
    assert listed(Ragged.concatenate([ragged(one), Ragged.empty(), ragged(two)])) == one + two
