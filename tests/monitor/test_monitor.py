"""The monitor as its users meet it: the contract, then what is found."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.small import TASKS, history, make, taught, traffic
from tanbr.errors import InputError, SettingsError, StateError
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.recogniser import LEAST_SHARE, by_mix
from tanbr.state import read_state, write_state
from tanbr.types import SlotMix, Text

MIX = {"weather": 30, "question": 20, "pair": 50}
REQUESTS = traffic(MIX, 4)

Fresh = Callable[[], Monitor]


def same(one: SlotMix, two: SlotMix) -> bool:
    """Whether two slots ended bit for bit alike."""
    return all(np.array_equal(getattr(one, field.name), getattr(two, field.name)) for field in fields(SlotMix))


def held(monitor: Monitor, folder: Path) -> dict[str, list[Any]]:
    """Give every array of a monitor's state, comparable."""
    monitor.save(folder / "held.npz")
    return {name: array.tolist() for name, array in read_state(folder / "held.npz")[1].items()}


def grow(monitor: Monitor, seed: int) -> SlotMix:
    """Let a monitor see a slot, and learn."""
    monitor.observe(traffic(MIX, seed))
    monitor.learn(*history(20, seed=seed))
    return monitor.close_slot()


# --- the contract of monitors, taught or not --------------------------------------------------------------------------


@pytest.fixture(params=[taught, lambda: Monitor(TASKS)])
def fresh(request: pytest.FixtureRequest) -> Fresh:
    made: Fresh = request.param
    return made


def test_mixes_are_mixes_and_silence_changes_none(fresh: Fresh) -> None:
    monitor = fresh()
    assert monitor.observe([]).shape == (0, 3)
    for seed in range(3):
        posteriors = monitor.observe(traffic(MIX, seed))
        assert posteriors.shape == (100, 3)
        assert posteriors.sum(axis=1) == pytest.approx(np.ones(100))
        closed = monitor.close_slot()
        for mix in (closed.estimate, closed.forecast):
            assert mix.sum() == pytest.approx(1)
            assert (mix >= 0).all()
        assert ((closed.uncertainty > 0) & (closed.uncertainty <= 0.5)).all()
        assert 0 <= closed.unknown <= 1
        assert closed.requests == 100
    silent = monitor.close_slot()
    assert silent.requests == 0
    assert np.array_equal(silent.forecast, closed.forecast)
    assert (silent.uncertainty >= closed.uncertainty).all()


def test_recognised_and_counted_is_observed_and_a_snapshot_stays_what_it_was(fresh: Fresh) -> None:
    one, two = fresh(), fresh()
    for monitor in (one, two):
        grow(monitor, 3)
    recogniser = one.snapshot()
    seen = recogniser.recognise(REQUESTS)
    one.count(seen)
    assert np.array_equal(two.observe(REQUESTS), seen.posteriors)
    assert same(one.close_slot(), two.close_slot())
    for seed in range(5, 8):
        grow(one, seed)
    assert np.array_equal(recogniser.recognise(REQUESTS).posteriors, seen.posteriors)


def test_a_fork_goes_its_own_way(fresh: Fresh, tmp_path: Path) -> None:
    """Whoever keeps a fork has undone all that followed, and both go on alike from there."""
    monitor = fresh()
    grow(monitor, 0)
    monitor.observe(traffic(MIX, 1))  # an open slot
    before, fork = held(monitor, tmp_path), monitor.fork()
    for seed in range(2, 6):
        grow(monitor, seed)
    _ = monitor.confusion
    assert held(fork, tmp_path) == before != held(monitor, tmp_path)
    again = fork.fork()
    for seed in range(6, 9):
        assert same(grow(fork, seed), grow(again, seed))
    assert np.array_equal(fork.confusion, again.confusion)


def test_a_saved_monitor_resumes_bit_for_bit(fresh: Fresh, tmp_path: Path) -> None:
    monitor = fresh()
    for seed in range(3):
        grow(monitor, seed)
    monitor.observe(traffic({"weather": 30}, 9))
    monitor.learn(*history(2, seed=5))  # not yet in the fit: too few
    monitor.save(tmp_path / "state.npz")
    resumed = Monitor.load(tmp_path / "state.npz", config=monitor.config)
    assert (resumed.tasks, resumed.config) == (monitor.tasks, monitor.config)
    for seed in range(10, 13):
        requests = traffic({"weather": 50, "pair": 20}, seed)
        assert np.array_equal(resumed.observe(requests), monitor.observe(requests))
        assert same(resumed.close_slot(), monitor.close_slot())
    assert np.array_equal(resumed.confusion, monitor.confusion)


def test_bad_input_is_refused_and_changes_nothing(fresh: Fresh, tmp_path: Path) -> None:
    monitor = fresh()
    grow(monitor, 0)
    before = held(monitor, tmp_path)
    with pytest.raises(InputError, match="request 1500 must be"):
        monitor.observe(["a"] * 1500 + [3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="put it in a list"):
        monitor.observe("a")
    with pytest.raises(InputError, match="recognised by this monitor, over 3 tasks"):
        monitor.count(Monitor(["one"]).snapshot().recognise(["a"]))
    with pytest.raises(InputError, match="unknown task 'nonsense'"):
        monitor.learn(["a", "b"], [monitor.tasks[0], "nonsense"])
    with pytest.raises(InputError, match="one length"):
        monitor.learn(["a"], [])
    assert held(monitor, tmp_path) == before


def test_tasks_that_cannot_be() -> None:
    for tasks in ([], "abc", ["a", "a"]):
        with pytest.raises(InputError, match="distinct names"):
            Monitor(tasks)


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.fixture
def monitor() -> Monitor:
    return taught()


def test_the_mix_of_untagged_requests_is_found(monitor: Monitor) -> None:
    monitor.observe(traffic({"weather": 50, "question": 30, "pair": 120}, 1))
    closed = monitor.close_slot()
    assert closed.estimate == pytest.approx([0.25, 0.15, 0.6], abs=0.03)
    assert closed.forecast == pytest.approx(closed.estimate)
    assert (closed.unknown, closed.alarm) == (0.0, False)


def test_without_history_nothing_is_claimed() -> None:
    monitor = Monitor(TASKS)
    seen = monitor.snapshot().recognise(["sun rain", ("a", "b")])
    assert np.array_equal(seen.posteriors, np.full((2, 3), 1 / 3))
    assert (seen.novel.any(), seen.informed) == (False, False)
    monitor.count(seen)
    closed = monitor.close_slot()
    assert closed.estimate == pytest.approx([1 / 3] * 3)
    assert (closed.uncertainty == 0.5).all()
    assert closed.requests == 2


def test_a_task_without_examples_is_never_claimed_until_it_has_some() -> None:
    monitor = Monitor(TASKS)
    texts, tasks = history(40)
    monitor.learn(texts[:80], tasks[:80])  # no pair among them
    assert (monitor.observe(make("pair", 20, 5))[:, 2] == 0).all()
    monitor.close_slot()
    monitor.learn(texts[80:], tasks[80:])
    monitor.close_slot()  # where a grown history is fitted
    assert (monitor.observe(make("pair", 20, 5)).argmax(axis=1) == 2).all()


def test_strange_traffic_raises_the_alarm_and_leaves_the_mix_alone(monitor: Monitor) -> None:
    familiar = traffic({"weather": 35, "question": 35}, 1)
    strange: list[Text] = [f"def f_{n}(x): return {{'k{n}': [x ** {n}, 0x{n:04x}]}}" for n in range(30)]
    seen = monitor.snapshot().recognise(strange + familiar)
    assert seen.novel[:30].all()
    assert seen.novel[30:].mean() <= 0.1
    assert seen.familiarity[:30].max() < np.median(seen.familiarity[30:])
    monitor.count(seen)
    closed = monitor.close_slot()
    assert closed.alarm
    assert closed.unknown == pytest.approx(0.3, abs=0.03)
    assert closed.estimate == pytest.approx([0.5, 0.5, 0], abs=0.05)
    monitor.observe(strange)
    all_strange = monitor.close_slot()
    assert all_strange.alarm
    assert all_strange.unknown > 0.95
    assert all_strange.forecast == pytest.approx(closed.forecast, abs=0.05)


def test_late_labels_are_history_from_the_next_slots_on(monitor: Monitor, tmp_path: Path) -> None:
    requests = traffic({"weather": 10, "question": 5, "pair": 20}, 0)
    before = monitor.observe(requests)
    texts, tasks = history(40, seed=8)
    for text, task in zip(texts[::4], tasks[::4], strict=True):  # one by one, 30 of them, on 120 texts
        monitor.learn([text], [task])
    assert np.array_equal(monitor.observe(requests), before)  # nothing moves within a slot
    monitor.save(tmp_path / "state.npz")
    resumed, whole = Monitor.load(tmp_path / "state.npz"), taught()
    whole.learn(texts[::4], tasks[::4])
    for each in (monitor, resumed):
        each.close_slot()
        each.learn(["the straw that is a quarter"], ["weather"])
        each.close_slot()
    whole.learn(["the straw that is a quarter"], ["weather"])
    after = whole.observe(requests)
    assert not np.array_equal(after, before)
    assert np.array_equal(monitor.observe(requests), after)
    assert np.array_equal(resumed.observe(requests), after)


def test_the_confusion_is_that_of_unseen_texts() -> None:
    monitor = Monitor(["weather", "twin", "pair", "never"])
    assert not monitor.confusion.any()
    texts = make("weather", 60, 0)
    monitor.learn(texts + make("pair", 60, 0), ["weather"] * 30 + ["twin"] * 30 + ["pair"] * 60)
    monitor.observe(["a"])
    table = monitor.confusion
    np.testing.assert_allclose(table.sum(axis=1), [1, 1, 1, 0], rtol=1e-12)  # sums of at most four shares
    assert table[2, 2] == 1
    assert table[0, 1] > 0.1  # nothing tells a twin from the other
    assert table[1, 0] > 0.1
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 1.0


# --- snapshots and beliefs --------------------------------------------------------------------------------------------


def test_a_request_is_recognised_the_same_alone_in_a_batch_and_among_threads(monitor: Monitor) -> None:
    recogniser = monitor.snapshot()
    together = recogniser.recognise(REQUESTS)
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda text: recogniser.recognise([text]), REQUESTS))
    # Scores and inputs are bit for bit the same; a product of matrices of other shapes may round otherwise: each of
    # the 62 terms of a logit by eps, in units of the sum of their sizes, which is below 1000 here.
    np.testing.assert_allclose(
        np.concatenate([each.posteriors for each in alone]), together.posteriors, atol=62 * 1000 * 2.0**-52
    )
    assert np.array_equal(np.concatenate([each.familiarity for each in alone]), together.familiarity)
    assert np.array_equal(np.concatenate([each.keys for each in alone]), together.keys)
    assert np.array_equal(recogniser.recognise(REQUESTS * 25).novel, np.tile(together.novel, 25))  # several batches


def test_a_plain_monitor_and_its_snapshots_do_not_hear_shouting(monitor: Monitor, tmp_path: Path) -> None:
    plain = Monitor(TASKS, config=MonitorConfig(plain=True))
    plain.learn(*history(20))
    plain.save(tmp_path / "monitor.state")
    texts = [text for text in REQUESTS if isinstance(text, str)]
    shouted = [f"  {text.upper()} !!" for text in texts]
    for each in (plain, Monitor.load(tmp_path / "monitor.state")):
        posteriors = each.snapshot().recognise(texts).posteriors
        assert np.array_equal(each.snapshot().recognise(shouted).posteriors, posteriors)
        assert np.array_equal(each.observe(shouted), posteriors)
    assert not np.array_equal(monitor.observe(shouted), monitor.observe(texts))
    with pytest.raises(SettingsError, match="with plain = True, and cannot go on with False"):
        Monitor.load(tmp_path / "monitor.state", config=MonitorConfig())


def test_the_mix_is_the_prior() -> None:
    posteriors = np.array([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]])
    np.testing.assert_allclose(by_mix(posteriors, np.array([0.25, 0.75])), [[0.25, 0.75], [0.75, 0.25], [1, 0]])
    assert by_mix(posteriors[0], np.array([0.25, 0.75])) == pytest.approx([0.25, 0.75])  # one request
    sure = by_mix(np.array([[1e-6, 1 - 1e-6]]), np.array([1.0, 0.0]))
    assert sure[0, 1] > 1 - 1.1e-6 / LEAST_SHARE  # a forecast of 0 does not outvote a text


# --- states that are none ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_state_that_somebody_made_up_is_refused_or_works(tmp_path: Path) -> None:
    """Whole files, right checksum, wrong values."""
    monitor, rng, refused = Monitor(TASKS), np.random.default_rng(0), 0
    monitor.learn(*history(4))
    monitor.observe(traffic({"weather": 20, "question": 20, "pair": 20}, 0))
    monitor.close_slot()
    monitor.observe(traffic({"weather": 5}, 3))
    monitor.save(tmp_path / "good.npz")
    header, arrays = read_state(tmp_path / "good.npz")
    for name, array in arrays.items():
        odd = {"f": [np.nan, np.inf, -1.0, 1e300, 5.0], "u": [0, 2**62], "i": [-1, 0, 2**62, 7]}[array.dtype.kind]
        changed = [np.where(rng.random(array.shape) < 0.3, value, array).astype(array.dtype) for value in odd]
        cut = [array[:-1], np.concatenate([array, array]), array[:0], rng.permutation(array)] if array.ndim else []
        for bad in changed + cut:
            write_state(tmp_path / "bad.npz", header, {**arrays, name: bad})
            try:
                mutant = Monitor.load(tmp_path / "bad.npz")
            except StateError:
                refused += 1
                continue
            mutant.observe(traffic({"weather": 2, "pair": 2}, 1))
            assert np.isfinite(mutant.close_slot().forecast).all()
    assert refused > 50


def test_a_monitor_of_more_tasks_in_another_order_recalls_what_the_old_one_knew(tmp_path: Path) -> None:
    order = ("pair", "weather", "question", "unseen")
    old, new, whole = Monitor(TASKS[:2]), Monitor(order), Monitor(order)
    texts, tasks = history(40)
    known = [task in old.tasks for task in tasks]
    old.learn(*zip(*[(text, task) for text, task, of in zip(texts, tasks, known, strict=True) if of], strict=True))
    new.learn(*zip(*[(text, task) for text, task, of in zip(texts, tasks, known, strict=True) if not of], strict=True))
    new.learn(make("weather", 5, 9), ["weather"] * 5)  # the old one knows better
    whole.learn(texts, tasks)
    assert held(new.recalling(old), tmp_path) == held(whole, tmp_path)
