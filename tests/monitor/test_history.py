"""The sample of the history: which texts stay depends neither on order nor on who saw them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.monitor.features import read
from tanbr.monitor.history import History

words = st.lists(st.tuples(st.text("ab", max_size=5), st.integers(0, 1)), max_size=40)


def learned(rows: list[tuple[str, int]], capacity: int = 6) -> History:
    history = History(capacity)
    for text, task in rows:
        history.add(read([text]), np.array([task]))
    return history


def listed(history: History) -> list[tuple[int, int, int]]:
    features, tasks, counts = history.sample()
    return list(zip(tasks.tolist(), features.keys.tolist(), counts.tolist(), strict=True))


@settings(max_examples=30)
@given(words, words)
def test_histories_merge_into_one_that_saw_both(one: list[tuple[str, int]], two: list[tuple[str, int]]) -> None:
    left, right = learned(one), learned(two)
    left.merge(right)
    assert listed(left) == listed(learned(two + one))


@settings(max_examples=30)
@given(words)
def test_a_history_is_bounded_and_counts_exactly(rows: list[tuple[str, int]]) -> None:
    kept = listed(learned(rows))
    keys = read([text for text, _ in rows]).keys.tolist()
    seen = [(task, key) for (_, task), key in zip(rows, keys, strict=True)]
    for task in (0, 1):
        smallest = sorted({key for owner, key in seen if owner == task})[:6]
        assert [(task, key, seen.count((task, key))) for key in smallest] == [row for row in kept if row[0] == task]
