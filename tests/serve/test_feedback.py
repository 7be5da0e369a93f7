from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tanbr.errors import InputError
from tanbr.serve.feedback import FeedbackReader
from tanbr.serve.ids import Epoch, RequestIds
from tanbr.serve.labels import label_space
from tanbr.serve.records import Feedback
from tanbr.serve.store import Store
from tanbr.tasks.rows import Task

TASKS = (Task("mood", ("accuracy",), ("bad", "good")), Task("kind", ("accuracy",), ("film", "book")))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


def reader(
    store: Store, ids: RequestIds, logits: dict[bytes, Any] | None = None, *, labels: bool = True
) -> FeedbackReader:
    known = logits or {}
    answers: Any = SimpleNamespace(logits_of=lambda keys: {key: known[key] for key in keys if key in known})
    space = label_space(TASKS, ("bad", "good", "film", "book")) if labels else None
    return FeedbackReader(store, answers, ids, tasks=[task.name for task in TASKS], space=space)


def test_rewards_and_scored_labels_are_on_disk_and_strangers_are_not(store: Store) -> None:
    ids = RequestIds(store.key, [Epoch(b"", 0)])
    one, two, three = ids.issue(0, 3)
    taken = reader(store, ids, {two: np.array([0.0, 1.0, 0.0, 0.0])}).take(
        [
            Feedback(ids.show(one), reward=0.5),
            Feedback(ids.show(two), task="mood", label="good"),
            Feedback(ids.show(three), task="mood", label="good"),  # nobody knows what was answered
            Feedback("nonsense", reward=1.0),
            Feedback(ids.show(one), reward=1.0),
        ],
        client="me",
    )
    assert taken.outcomes == ("accepted", "accepted", "unknown", "unknown", "repeated")
    kept = [(row.id, row.source, row.task, row.reward, row.client) for row in store.feedback(after=0)]
    assert kept == [(one, "feedback", None, 0.5, "me"), (two, "labels", 0, 1.0, "me")]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"reward": 1.5}, r"must lie in \[0, 1\]"),
        ({"reward": float("nan")}, r"must lie in \[0, 1\]"),
        ({"reward": 1.0, "task": "sport"}, "unknown task 'sport'; this server knows mood, kind"),
        ({}, "either a reward or a label"),
        ({"label": "good"}, "a label needs its task"),
        ({"label": "film", "task": "mood"}, "film"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_taken_in(store: Store, item, says) -> None:
    ids = RequestIds(store.key, [Epoch(b"", 0)])
    first, second = (ids.show(raw) for raw in ids.issue(0, 2))
    with pytest.raises(InputError, match=says):
        reader(store, ids).take([Feedback(first, reward=1.0), Feedback(second, **item)], client="")
    assert not store.feedback(after=0)


def test_without_a_label_space_only_rewards_are_taken(store: Store) -> None:
    ids = RequestIds(store.key, [Epoch(b"", 0)])
    with pytest.raises(InputError, match="scores no labels; send a reward"):
        reader(store, ids, labels=False).take([Feedback("x", task="mood", label="good")], client="")
