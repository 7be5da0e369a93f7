"""A snapshot recognises what its monitor would, never changes, and can be shared."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from monitor.small import CONFIG, TASKS, history, make, taught, traffic
from tanbr.errors import InputError
from tanbr.monitor import Method, Monitor
from tanbr.types import Text

REQUESTS = traffic({"weather": 30, "question": 20, "pair": 50}, 4)


@pytest.mark.parametrize("method", ["sketch", "clusters", "tags"])
def test_recognised_and_counted_is_observed(method: Method) -> None:
    one, two = (Monitor(TASKS, method, config=CONFIG) for _ in range(2))
    for monitor in (one, two):
        if method == "sketch":
            monitor.learn(*history(20))
        monitor.observe(traffic({"weather": 30, "question": 20, "pair": 50}, 3))
        monitor.close_slot()
    seen = one.snapshot().recognise(REQUESTS)
    one.count(seen, ["pair", *[None] * 99])
    posteriors = two.observe(REQUESTS, ["pair", *[None] * 99])
    assert np.array_equal(seen.posteriors[1:], posteriors[1:])
    assert seen.informed == (method != "tags")
    mine, theirs = one.close_slot(), two.close_slot()
    assert np.array_equal(mine.estimate, theirs.estimate)
    assert np.array_equal(mine.forecast, theirs.forecast)
    assert mine.requests == theirs.requests == 100


def test_a_request_is_recognised_the_same_alone_and_in_a_batch() -> None:
    recogniser = taught().snapshot()
    together = recogniser.recognise(REQUESTS)
    alone = [recogniser.recognise([text]) for text in REQUESTS]
    # Scores and inputs are bit for bit the same; a product of matrices of other shapes may round otherwise: each of
    # the 62 terms of a logit by eps, in units of the sum of their sizes, which is below 1000 here.
    np.testing.assert_allclose(
        np.concatenate([each.posteriors for each in alone]), together.posteriors, atol=62 * 1000 * 2.0**-52
    )
    assert np.array_equal(np.concatenate([each.familiarity for each in alone]), together.familiarity)
    assert np.array_equal(np.concatenate([each.keys for each in alone]), together.keys)


def test_a_snapshot_stays_what_it_was() -> None:
    monitor = taught()
    recogniser = monitor.snapshot()
    before = recogniser.recognise(REQUESTS).posteriors
    monitor.learn(make("weather", 200, 9), ["question"] * 200)
    monitor.observe(REQUESTS)
    monitor.close_slot()
    assert np.array_equal(recogniser.recognise(REQUESTS).posteriors, before)
    assert not np.array_equal(monitor.snapshot().recognise(REQUESTS).posteriors, before)
    with pytest.raises(FrozenInstanceError):
        recogniser.mix = before[0]  # type: ignore[misc]


def test_threads_share_a_snapshot() -> None:
    recogniser = taught().snapshot()
    alone = [recogniser.recognise(REQUESTS[start : start + 5]).posteriors for start in range(0, 100, 5)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            parts = list(pool.map(lambda start: recogniser.recognise(REQUESTS[start : start + 5]), range(0, 100, 5)))
            assert all(np.array_equal(part.posteriors, one) for part, one in zip(parts, alone, strict=True))


def test_nothing_known_is_the_forecast_and_nothing_is_novel() -> None:
    seen = Monitor(TASKS, config=CONFIG).snapshot().recognise(["sun", ("a", "b")])
    assert np.array_equal(seen.posteriors, np.full((2, 3), 1 / 3))
    assert not seen.novel.any()
    assert not seen.informed


def test_no_requests_and_more_than_a_batch() -> None:
    recogniser = taught().snapshot()
    assert recogniser.recognise([]).posteriors.shape == (0, 3)
    many: list[Text] = [*REQUESTS] * 25
    assert np.array_equal(recogniser.recognise(many).novel, np.tile(recogniser.recognise(REQUESTS).novel, 25))


def test_bad_input_is_refused() -> None:
    monitor = taught()
    with pytest.raises(InputError, match="put it in a list"):
        monitor.snapshot().recognise("one")
    with pytest.raises(InputError, match="over 3 tasks"):
        monitor.count(Monitor(["one"], config=CONFIG).snapshot().recognise(["a"]))
    with pytest.raises(InputError, match="one length"):
        monitor.count(monitor.snapshot().recognise(["a"]), [])
    assert monitor.close_slot().requests == 0


def test_a_plain_monitor_and_its_snapshots_do_not_hear_shouting(tmp_path: Path) -> None:
    monitor = Monitor(TASKS, config=CONFIG.model_copy(update={"plain": True}))
    monitor.learn(*history(20))
    monitor.save(tmp_path / "monitor.state")
    texts = [text for text in REQUESTS if isinstance(text, str)]
    shouted = [f"  {text.upper()} !!" for text in texts]
    for each in (monitor, Monitor.load(tmp_path / "monitor.state")):
        posteriors = each.snapshot().recognise(texts).posteriors
        assert np.array_equal(each.snapshot().recognise(shouted).posteriors, posteriors)
        assert np.array_equal(each.observe(shouted), posteriors)
    assert not np.array_equal(taught().observe(shouted), taught().observe(texts))
