"""The monitor as its users meet it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.contract import check_monitor, held
from monitor.small import CONFIG, TASKS, history, make, taught, traffic
from tanbr import state
from tanbr.errors import InputError, OutputError, StateError
from tanbr.monitor import Method, Monitor
from tanbr.state import read_state, write_state
from tanbr.types import Text

any_text = st.text(max_size=30) | st.tuples(st.text(max_size=20), st.text(max_size=20))


@pytest.fixture
def monitor() -> Monitor:
    return taught()


@pytest.mark.parametrize("method", ["sketch", "clusters"])
def test_the_contract_of_monitors(method: Method, tmp_path: Path) -> None:
    def fresh() -> Monitor:
        monitor = Monitor(TASKS, method, config=CONFIG)
        if monitor.learns:
            monitor.learn(*history(20))
        return monitor

    check_monitor(fresh, tmp_path)
    check_monitor(lambda: Monitor(TASKS, method, config=CONFIG), tmp_path)  # that knows nothing to begin with


def test_the_mix_of_untagged_requests_is_found(monitor: Monitor) -> None:
    posteriors = monitor.observe(traffic({"weather": 50, "question": 30, "pair": 120}, 1))
    closed = monitor.close_slot()
    assert posteriors.shape == (200, 3)
    assert posteriors.sum(axis=1) == pytest.approx(np.ones(200))
    assert closed.estimate == pytest.approx([0.25, 0.15, 0.6], abs=0.03)
    assert closed.forecast == pytest.approx(closed.estimate)
    assert closed.requests == 200
    assert (closed.unknown, closed.alarm) == (0.0, False)
    assert (closed.uncertainty > 0).all()


def test_a_switch_shows_in_the_next_forecast(monitor: Monitor) -> None:
    for seed in range(6):
        monitor.observe(traffic({"weather": 90, "question": 10}, seed))
        monitor.close_slot()
    monitor.observe(traffic({"weather": 5, "pair": 95}, 10))
    assert monitor.close_slot().forecast == pytest.approx([0.05, 0.0, 0.95], abs=0.05)


def test_without_history_nothing_is_claimed() -> None:
    monitor = Monitor(TASKS, config=CONFIG)
    assert monitor.observe(["sun rain"]) == pytest.approx(np.full((1, 3), 1 / 3))
    closed = monitor.close_slot()
    assert closed.estimate == pytest.approx([1 / 3] * 3)
    assert (closed.uncertainty == 0.5).all()
    assert closed.requests == 1


def test_a_task_without_examples_is_never_claimed_until_it_has_some() -> None:
    monitor = Monitor(TASKS, config=CONFIG)
    texts, tasks = history(40)
    monitor.learn(texts[:80], tasks[:80])  # no pair among them
    assert (monitor.observe(make("pair", 20, 5))[:, 2] == 0).all()
    monitor.close_slot()
    monitor.learn(texts[80:], tasks[80:])
    monitor.close_slot()  # where a grown history is fitted
    assert (monitor.observe(make("pair", 20, 5)).argmax(axis=1) == 2).all()


def test_one_task_alone_is_certain() -> None:
    monitor = Monitor(["only"], config=CONFIG)
    monitor.learn(["a b c"] * 5, ["only"] * 5)
    assert monitor.observe(["a", "b"]).tolist() == [[1.0], [1.0]]
    assert monitor.close_slot().estimate.tolist() == [1.0]


def test_late_feedback_improves_it() -> None:
    monitor = Monitor(TASKS, config=CONFIG)
    # At first the history has two tasks the wrong way round for half of its texts.
    texts, tasks = history(4)
    monitor.learn(texts[:8], tasks[4:8] + tasks[:4])
    requests = traffic({"weather": 60, "question": 20, "pair": 20}, 3)
    monitor.observe(requests)
    before = np.abs(monitor.close_slot().estimate - [0.6, 0.2, 0.2]).sum()
    monitor.learn(*history(40, seed=8))
    monitor.close_slot()
    monitor.observe(requests)
    assert np.abs(monitor.close_slot().estimate - [0.6, 0.2, 0.2]).sum() < 0.2 * before


def test_strange_traffic_raises_the_alarm_and_leaves_the_mix_alone(monitor: Monitor) -> None:
    familiar = traffic({"weather": 35, "question": 35}, 1)
    strange: list[Text] = [f"def f_{n}(x): return {{'k{n}': [x ** {n}, 0x{n:04x}]}}" for n in range(30)]
    monitor.observe(familiar + strange)
    closed = monitor.close_slot()
    assert closed.alarm
    assert closed.unknown == pytest.approx(0.3, abs=0.03)
    assert closed.estimate == pytest.approx([0.5, 0.5, 0], abs=0.05)
    monitor.observe(strange)
    all_strange = monitor.close_slot()
    assert all_strange.alarm
    assert all_strange.unknown > 0.95
    assert all_strange.forecast == pytest.approx(closed.forecast, abs=0.05)


@settings(max_examples=40)
@given(st.lists(any_text, max_size=20))
def test_anything_yields_a_mix(texts: list[Text]) -> None:
    monitor = Monitor(TASKS, config=CONFIG)
    monitor.learn(*history(8))
    posteriors = monitor.observe(texts)
    assert posteriors.shape == (len(texts), 3)
    assert np.allclose(posteriors.sum(axis=1), 1)
    closed = monitor.close_slot()
    for mix in (closed.estimate, closed.forecast):
        assert mix.sum() == pytest.approx(1)
        assert (mix >= 0).all()
    assert np.isfinite(closed.uncertainty).all()
    assert 0 <= closed.unknown <= 1


@settings(max_examples=10)
@given(st.permutations(range(40)), st.integers(1, 39))
def test_order_and_batches_do_not_matter(order: list[int], cut: int) -> None:
    requests = traffic({"weather": 10, "question": 5, "pair": 25}, 0)
    closed = []
    for arranged in (
        [requests],
        [[requests[place] for place in order[:cut]], [requests[place] for place in order[cut:]]],
    ):
        monitor = Monitor(TASKS, config=CONFIG)
        monitor.learn(*history(10))
        for batch in arranged:
            monitor.observe(batch)
        closed.append(monitor.close_slot())
    for name in ("estimate", "forecast", "uncertainty", "unknown"):
        np.testing.assert_allclose(getattr(closed[0], name), getattr(closed[1], name), atol=1e-7)
    assert (closed[0].requests, closed[0].alarm) == (closed[1].requests, closed[1].alarm)


def test_a_saved_monitor_goes_on_with_new_settings(monitor: Monitor, tmp_path: Path) -> None:
    monitor.snapshot()  # fits
    monitor.save(tmp_path / "state.npz")
    requests = traffic({"weather": 50, "pair": 20}, 3)
    new = CONFIG.model_copy(update={"history": 32, "slot_sample": 64})
    resumed = Monitor.load(tmp_path / "state.npz", config=new)
    assert resumed.config == new
    resumed.learn(*history(12, seed=4))  # beyond the new bound
    fresh = Monitor(TASKS, config=new)
    fresh.learn(*history(40))
    fresh.learn(*history(12, seed=4))
    np.testing.assert_allclose(resumed.observe(requests), fresh.observe(requests))  # as if it had been taught with them


def test_memory_does_not_grow_with_what_is_seen(monitor: Monitor, tmp_path: Path) -> None:
    def size() -> int:
        return sum(array.nbytes for array in held(monitor, tmp_path).values())

    for seed in range(4):
        monitor.learn(*history(100, seed=seed))
        monitor.observe(traffic({"weather": 300, "pair": 300}, seed))
    full = size()
    for seed in range(4, 8):
        monitor.learn(*history(100, seed=seed))
        monitor.observe(traffic({"weather": 300, "pair": 300}, seed))
    assert size() < 1.1 * full


def test_states_that_are_none(monitor: Monitor, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    monitor.save(good)
    with pytest.raises(StateError, match="no saved state"):
        Monitor.load(tmp_path / "nowhere.npz")
    with pytest.raises(StateError, match="with sketch_width = 512, and cannot go on with 1024"):
        Monitor.load(good, config=CONFIG.model_copy(update={"sketch_width": 1024}))
    for damaged in (good.read_bytes()[:-2000], b"nothing of the kind", b""):
        bad.write_bytes(damaged)
        with pytest.raises(StateError, match="not a whole state"):
            Monitor.load(bad)
    header, arrays = read_state(good)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "VERSION", 99)
        write_state(bad, header, arrays)
    with pytest.raises(StateError, match="state version 99"):
        Monitor.load(bad)
    write_state(bad, {}, arrays)
    with pytest.raises(StateError, match="damaged"):
        Monitor.load(bad)
    write_state(bad, header, {**arrays, "forecast.mix": np.zeros((2, 2))})
    with pytest.raises(StateError, match=r"'forecast.mix' must be"):
        Monitor.load(bad)
    write_state(
        bad, header, {**arrays, "knowledge.sketches.bytes.counts": arrays["knowledge.sketches.bytes.counts"][:, :64]}
    )
    with pytest.raises(StateError, match="sketches must be of shape"):
        Monitor.load(bad)
    arrays.pop("slot.keys")
    write_state(bad, header, arrays)
    with pytest.raises(StateError, match=r"'slot.keys' is missing"):
        Monitor.load(bad)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        monitor.save(tmp_path / "file" / "state.npz")


@pytest.mark.parametrize("method", ["sketch", "clusters"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_state_that_somebody_made_up_is_refused_or_works(method: Method, tmp_path: Path) -> None:
    """Whole files, right checksum, wrong values."""
    monitor, rng, refused = Monitor(TASKS, method, config=CONFIG), np.random.default_rng(0), 0
    if monitor.learns:
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


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": 3}, {"tasks": None}, {"tasks": []}, {"tasks": [["a"]]}, {"method": ["sketch"]}, {"config": []},
        {"config": {"sketch_width": 2**40}}, {"config": {"nonsense": 1}}, {"tasks": ["a"] * 3},
    ],
)  # fmt: skip
def test_a_mutated_header_is_refused(monitor: Monitor, change: dict[str, object], tmp_path: Path) -> None:
    monitor.save(tmp_path / "state.npz")
    header, arrays = read_state(tmp_path / "state.npz")
    write_state(tmp_path / "state.npz", {**header, **change}, arrays)
    with pytest.raises(StateError, match="is damaged"):
        Monitor.load(tmp_path / "state.npz")


def test_late_labels_are_history_from_the_next_slots_on(monitor: Monitor, tmp_path: Path) -> None:
    requests = traffic({"weather": 10, "question": 5, "pair": 20}, 0)
    before = monitor.observe(requests)
    texts, tasks = history(40, seed=8)
    for text, task in zip(texts[::4], tasks[::4], strict=True):  # one by one, 30 of them, on 120 texts
        monitor.learn([text], [task])
    assert np.array_equal(monitor.observe(requests), before)  # nothing moves within a slot
    monitor.save(tmp_path / "state.npz")
    resumed = Monitor.load(tmp_path / "state.npz")
    whole = Monitor(TASKS, config=CONFIG)
    whole.learn(*history(40))
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


def test_rubbish_is_novel_and_real_texts_are_not(monitor: Monitor) -> None:
    rng = np.random.default_rng(0)
    letters = np.array(list("qxzjkvwyQXZJKV0123456789#$%&{}[]<>"))
    rubbish: list[Text] = ["".join(rng.choice(letters, size=rng.integers(15, 60))) for _ in range(50)]
    real = traffic({"weather": 40, "question": 30, "pair": 30}, 5)
    seen = monitor.snapshot().recognise(rubbish + real)
    assert seen.novel[:50].all()
    assert seen.novel[50:].mean() <= 0.1
    assert seen.familiarity[:50].max() < np.median(seen.familiarity[50:])


def test_the_confusion_is_that_of_unseen_texts() -> None:
    monitor = Monitor(["weather", "twin", "pair", "never"], config=CONFIG)
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


def test_bad_input_is_refused(monitor: Monitor) -> None:
    with pytest.raises(InputError, match="one length"):
        monitor.learn(["a"], [])
    with pytest.raises(InputError, match="request 1500 must be"):
        monitor.learn(["a"] * 1500 + [None], ["pair"] * 1501)  # type: ignore[list-item]
    for tasks in ([], "abc", ["a", "a"]):
        with pytest.raises(InputError, match="distinct names"):
            Monitor(tasks)
    with pytest.raises(InputError, match="unknown method"):
        Monitor(TASKS, "magic")  # type: ignore[arg-type]
