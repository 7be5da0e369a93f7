"""Without labels: traffic falls into clusters that keep their identities."""

import numpy as np
import pytest

from monitor.small import TASKS, make, traffic
from tanbr.monitor import Monitor

NAMES = ("one", "two", "three")


def cluster_of(monitor: Monitor, task: str) -> int:
    """Give the cluster that most texts of a task fall into."""
    found = np.bincount(monitor.observe(make(task, 50, 99)).argmax(axis=1), minlength=3)
    monitor.close_slot()
    assert found.max() >= 45
    return int(found.argmax())


def test_clusters_are_the_tasks_and_stay_them_and_their_mix_is_the_tasks() -> None:
    monitor = Monitor(NAMES, "clusters")
    monitor.observe(traffic({"weather": 60, "question": 100, "pair": 40}, 0))
    monitor.close_slot()
    order = [cluster_of(monitor, task) for task in TASKS]
    assert sorted(order) == [0, 1, 2]
    for seed in range(1, 6):
        monitor.observe(traffic({"weather": 10 * seed, "question": 5, "pair": 30}, seed))
        monitor.close_slot()
    assert [cluster_of(monitor, task) for task in TASKS] == order
    monitor.observe(traffic({"weather": 20, "question": 50, "pair": 130}, 7))
    assert monitor.close_slot().estimate[order] == pytest.approx([0.1, 0.25, 0.65], abs=0.05)


def test_too_few_requests_are_not_clustered() -> None:
    monitor = Monitor(NAMES, "clusters")
    assert monitor.observe(["a", "b"]) == pytest.approx(np.full((2, 3), 1 / 3))
    closed = monitor.close_slot()
    assert closed.forecast == pytest.approx([1 / 3] * 3)
    assert closed.requests == 2
