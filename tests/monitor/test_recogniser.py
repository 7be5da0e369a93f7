"""A snapshot recognises what its monitor would, never changes, and can be shared."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from monitor.small import CONFIG, TASKS, history, taught, traffic
from tanbr.monitor import Monitor
from tanbr.types import Text

REQUESTS = traffic({"weather": 30, "question": 20, "pair": 50}, 4)


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
