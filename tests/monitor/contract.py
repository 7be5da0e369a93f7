"""What every monitor must do, whatever its method: `check_monitor` runs it all on a fresh one."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from monitor.small import history, traffic
from tanbr.errors import InputError
from tanbr.monitor import Monitor
from tanbr.state import read_state
from tanbr.types import SlotMix

MIX = {"weather": 30, "question": 20, "pair": 50}


def check_monitor(fresh: Callable[[], Monitor], folder: Path) -> None:
    """Check the contract of monitors: observe, learn, close_slot, snapshot, fork, save and load."""
    _check_mixes(fresh())
    _check_snapshot(fresh(), fresh())
    _check_fork(fresh(), folder)
    _check_resuming(fresh(), folder)
    _check_refusals(fresh(), folder)


def same(one: SlotMix, two: SlotMix) -> bool:
    """Whether two slots ended bit for bit alike."""
    return all(np.array_equal(getattr(one, field.name), getattr(two, field.name)) for field in fields(SlotMix))


def held(monitor: Monitor, folder: Path) -> dict[str, np.ndarray]:
    """Give every array of a monitor's state."""
    monitor.save(folder / "held.npz")
    return read_state(folder / "held.npz")[1]


def _equal(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(array, two[name]) for name, array in one.items())


def _grow(monitor: Monitor, seed: int) -> SlotMix:
    """Let a monitor see a slot, and learn if it does."""
    monitor.observe(traffic(MIX, seed))
    if monitor.learns:
        monitor.learn(*history(20, seed=seed))
    return monitor.close_slot()


def _check_mixes(monitor: Monitor) -> None:
    V = len(monitor.tasks)
    assert monitor.observe([]).shape == (0, V)
    for seed in range(3):
        requests = traffic(MIX, seed)
        posteriors = monitor.observe(requests)
        assert posteriors.shape == (len(requests), V)
        assert posteriors.sum(axis=1) == pytest.approx(np.ones(len(requests)))
        closed = monitor.close_slot()
        assert closed.requests == len(requests)
        for mix in (closed.estimate, closed.forecast):
            assert mix.sum() == pytest.approx(1)
            assert (mix >= 0).all()
        assert ((closed.uncertainty > 0) & (closed.uncertainty <= 0.5)).all()
        assert 0 <= closed.unknown <= 1
    silent = monitor.close_slot()
    assert silent.requests == 0
    assert np.array_equal(silent.forecast, closed.forecast)
    assert (silent.uncertainty >= closed.uncertainty).all()


def _check_snapshot(one: Monitor, two: Monitor) -> None:
    """Recognised and counted is observed, and a snapshot stays what it was."""
    for monitor in (one, two):
        _grow(monitor, 3)
    requests = traffic(MIX, 4)
    recogniser = one.snapshot()
    seen = recogniser.recognise(requests)
    one.count(seen)
    assert np.array_equal(two.observe(requests), seen.posteriors)
    assert same(one.close_slot(), two.close_slot())
    for seed in range(5, 8):
        _grow(one, seed)
    assert np.array_equal(recogniser.recognise(requests).posteriors, seen.posteriors)


def _check_fork(monitor: Monitor, folder: Path) -> None:
    """A fork goes its own way; whoever keeps one has undone all that followed, and both go on alike from there."""
    _grow(monitor, 0)
    monitor.observe(traffic(MIX, 1))  # an open slot
    before = held(monitor, folder)
    fork = monitor.fork()
    for seed in range(2, 6):
        _grow(monitor, seed)
    _ = monitor.confusion
    assert _equal(held(fork, folder), before)
    assert not _equal(held(monitor, folder), before)
    again = fork.fork()
    for seed in range(6, 9):
        assert same(_grow(fork, seed), _grow(again, seed))
    assert np.array_equal(fork.confusion, again.confusion)


def _check_resuming(monitor: Monitor, folder: Path) -> None:
    for seed in range(3):
        _grow(monitor, seed)
    monitor.observe(traffic({"weather": 30}, 9))
    if monitor.learns:
        monitor.learn(*history(2, seed=5))  # not yet in the fit: too few
    monitor.save(folder / "state.npz")
    resumed = Monitor.load(folder / "state.npz", config=monitor.config)
    assert (resumed.tasks, resumed.method, resumed.config) == (monitor.tasks, monitor.method, monitor.config)
    for seed in range(10, 13):
        requests = traffic({"weather": 50, "pair": 20}, seed)
        assert np.array_equal(resumed.observe(requests), monitor.observe(requests))
        assert same(resumed.close_slot(), monitor.close_slot())
    assert np.array_equal(resumed.confusion, monitor.confusion)


def _check_refusals(monitor: Monitor, folder: Path) -> None:
    """Bad input is refused and changes nothing."""
    _grow(monitor, 0)
    before = held(monitor, folder)
    with pytest.raises(InputError, match="request 1500 must be"):
        monitor.observe(["a"] * 1500 + [3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="put it in a list"):
        monitor.observe("a")
    with pytest.raises(InputError, match="recognised by this monitor, over 3 tasks"):
        monitor.count(Monitor(["one"], monitor.method).snapshot().recognise(["a"]))
    with pytest.raises(InputError, match="unknown task 'nonsense'" if monitor.learns else "does not learn from labels"):
        monitor.learn(["a", "b"], [monitor.tasks[0], "nonsense"])
    assert _equal(held(monitor, folder), before)
