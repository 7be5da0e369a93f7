import numpy as np
import pytest

from tanbr.serve.web.latency import SECONDS, WINDOWS, LatencyHistory


def test_latencies_come_in_windows() -> None:
    now = 100.0
    latencies = LatencyHistory(clock=lambda: now)
    for seconds in (0.001, 0.002, 0.003):
        latencies.add(seconds)
    now += 3 * SECONDS
    latencies.add(0.5)
    windows = latencies.windows()
    assert [(window.time, window.requests) for window in windows] == [(100, 3), (110, 0), (120, 0), (130, 1)]
    assert windows[0].p50_ms == pytest.approx(2)
    assert windows[0].p99_ms == pytest.approx(2.98)
    assert np.isnan(windows[1].p50_ms)
    now += 10 * WINDOWS * SECONDS
    windows = latencies.windows()
    assert len(windows) == WINDOWS + 1
    assert windows[-1].time == pytest.approx(130 + 10 * WINDOWS * SECONDS)
    assert np.diff([window.time for window in windows]) == pytest.approx(SECONDS)
