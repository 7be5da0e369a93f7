import io
import json
import logging

import httpx2
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve.web.fake import FakeService, K
from tanbr.serve.web import logs
from tanbr.serve.web.metrics import WINDOW_SECONDS, WINDOWS, LatencyHistory, Metrics
from tanbr.serve.web.server import Observers
from tanbr.types import SlotRecord


def record(reward: float = 0.5) -> SlotRecord:
    return SlotRecord(
        3, 2, np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([reward, np.nan]), np.array([4.0, 0.0])
    )


def test_prometheus_reads_everything(http: httpx2.Client, service: FakeService) -> None:
    http.post("/v1/classify", json={"inputs": ["a"]})
    http.get("/no/such/path/1")
    http.get("/no/such/path/2")
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    samples = {
        family: {tuple(sample.labels.values()): sample.value for sample in families[family].samples}
        for family in families
    }
    now = service.state()
    assert samples["tanbr_merge_version"] == {(): now.merge_version}
    assert sum(samples["tanbr_task_mix"].values()) == pytest.approx(1)
    assert samples["tanbr_blend"] == {(str(k),): pytest.approx(now.blend[k]) for k in range(K)}
    assert samples["tanbr_regret_estimate"] == {(): now.estimated_regret}
    assert samples["tanbr_http_requests"]["/v1/classify", "200"] >= 1
    assert samples["tanbr_http_requests"]["other", "404"] >= 2  # a client cannot make up new series
    assert {"tanbr_http_seconds", "tanbr_batch_size", "tanbr_slot_reward", "tanbr_merge_seconds", "tanbr_queue"} <= set(
        families
    )
    assert "process_resident_memory_bytes" in families


def test_what_the_service_does_is_counted_and_logged() -> None:
    stream = io.StringIO()
    logs.to_stream(stream)
    metrics = Metrics()
    observer = Observers([metrics, logs.Journal()])
    observer.batch(8, 0.004)
    observer.queue(3)
    observer.merged(0.02, 7)
    observer.slot(record())
    observer.alarm("the mix\n drifts")
    text = metrics.text().decode()
    assert "tanbr_batch_size_count 1.0" in text
    assert "tanbr_slot_reward_sum 0.5" in text
    assert "tanbr_alarms_total 1.0" in text
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["merged", "slot", "alarm"]
    assert lines[1]["reward"] == 0.5
    assert lines[1]["blend"] == [1.0, 0.0]
    assert lines[2]["level"] == "warning"
    assert all(line["time"].endswith("Z") for line in lines)


def test_a_request_is_one_line_of_the_log_whatever_its_path() -> None:
    stream = io.StringIO()
    logs.to_stream(stream, level=logging.DEBUG)
    logs.say_request(
        route="other", method="GET", path="/\n{}\x1b[31m" + "x" * 500, status=404, seconds=0.001, client="::1"
    )
    logs.to_stream(stream)
    logs.say_request(route="other", method="GET", path="/", status=404, seconds=0.001, client="::1")
    (line,) = stream.getvalue().splitlines()
    assert len(json.loads(line)["path"]) == logs.LONGEST
    assert "\x1b" not in line
    try:
        raise ValueError("x")
    except ValueError:
        logs.logger.exception("broke")
    assert "ValueError" in json.loads(stream.getvalue().splitlines()[-1])["traceback"]


def test_latencies_come_in_windows() -> None:
    now = 100.0
    latencies = LatencyHistory(clock=lambda: now)
    for seconds in (0.001, 0.002, 0.003):
        latencies.add(seconds)
    now += 3 * WINDOW_SECONDS
    latencies.add(0.5)
    windows = latencies.windows()
    assert [(window.time, window.requests) for window in windows] == [(100, 3), (110, 0), (120, 0), (130, 1)]
    assert windows[0].p50_ms == pytest.approx(2)
    assert windows[0].p99_ms == pytest.approx(2.98)
    assert np.isnan(windows[1].p50_ms)
    now += 10 * WINDOWS * WINDOW_SECONDS
    windows = latencies.windows()
    assert len(windows) == WINDOWS + 1
    assert windows[-1].time == pytest.approx(130 + 10 * WINDOWS * WINDOW_SECONDS)
    assert np.diff([window.time for window in windows]) == pytest.approx(WINDOW_SECONDS)
