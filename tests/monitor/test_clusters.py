"""Without labels: traffic falls into groups that keep their identities."""

import numpy as np
import pytest

from monitor.small import CONFIG, TASKS, make, traffic
from tanbr.errors import InputError
from tanbr.monitor import Monitor

NAMES = ("one", "two", "three")
MIX = {"weather": 60, "question": 100, "pair": 40}


def taught(seed: int = 0) -> Monitor:
    monitor = Monitor(NAMES, "clusters", config=CONFIG)
    monitor.observe(traffic(MIX, seed))
    monitor.close_slot()
    return monitor


def group_of(monitor: Monitor, task: str) -> int:
    """Give the group most texts of a task fall into."""
    found = np.bincount(monitor.observe(make(task, 50, 99)).argmax(axis=1), minlength=3)
    monitor.close_slot()
    assert found.max() >= 45
    return int(found.argmax())


def test_groups_are_the_tasks_and_stay_them() -> None:
    monitor = taught()
    before = [group_of(monitor, task) for task in TASKS]
    assert sorted(before) == [0, 1, 2]
    for seed in range(1, 6):
        monitor.observe(traffic({"weather": 10 * seed, "question": 5, "pair": 30}, seed))
        monitor.close_slot()
    assert [group_of(monitor, task) for task in TASKS] == before


def test_the_mix_of_groups_is_the_mix_of_tasks() -> None:
    monitor = taught()
    order = [group_of(monitor, task) for task in TASKS]
    monitor.observe(traffic({"weather": 20, "question": 50, "pair": 130}, 7))
    assert monitor.close_slot().estimate[order] == pytest.approx([0.1, 0.25, 0.65], abs=0.05)


def test_too_few_requests_are_not_grouped() -> None:
    monitor = Monitor(NAMES, "clusters", config=CONFIG)
    assert monitor.observe(["a", "b"]) == pytest.approx(np.full((2, 3), 1 / 3))
    closed = monitor.close_slot()
    assert closed.forecast == pytest.approx([1 / 3] * 3)
    assert closed.requests == 2


def test_embeddings_are_grouped_instead_when_given() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(3)[rng.integers(3, size=200)]
    monitor = Monitor(NAMES, "clusters", config=CONFIG)
    texts = [f"text {number}" for number in range(200)]
    groups = monitor.observe(texts, embeddings=centres + rng.normal(0, 0.05, centres.shape)).argmax(axis=1)
    assert all(len(set(groups[centres[:, task] == 1])) == 1 for task in range(3))
    assert len(set(groups)) == 3
    with pytest.raises(InputError, match="must have the 3 dimensions"):
        monitor.observe(["more"], embeddings=[[1.0, 2.0]])
    with pytest.raises(InputError, match="finite vectors"):
        monitor.observe(["more"], embeddings=[[1.0, np.nan, 2.0]])
    with pytest.raises(InputError, match="embeddings are for the method 'clusters'"):
        Monitor(NAMES).observe(["more"], embeddings=[[1.0]])


def test_one_kind_of_request_only_is_fine() -> None:
    monitor = Monitor(NAMES, "clusters", config=CONFIG)
    posteriors = monitor.observe(["the same"] * 300 + [f"word{number}" for number in range(60)])
    assert posteriors.sum(axis=1) == pytest.approx(np.ones(360))
    assert monitor.close_slot().estimate.sum() == pytest.approx(1)


def test_merging_before_the_first_fit_is_seeing_both(tmp_path: object) -> None:
    one, two, both = (Monitor(NAMES, "clusters", config=CONFIG) for _ in range(3))
    left, right = (
        traffic({"weather": 6, "question": 7, "pair": 8}, 1),
        traffic({"weather": 9, "question": 9, "pair": 6}, 2),
    )
    for monitor, texts in ((one, left), (two, right), (both, left + right)):
        for text in texts:
            monitor.observe([text])
    one.merge(two)
    asked = traffic(MIX, 3)
    np.testing.assert_allclose(one.observe(asked), both.observe(asked), atol=1e-9)


def test_labels_are_refused() -> None:
    with pytest.raises(InputError, match="does not learn from labels"):
        taught().learn(["a"], ["one"])
