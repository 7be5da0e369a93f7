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
from tanbr.types import SlotRecord


def test_prometheus_reads_everything(http: httpx2.Client, service: FakeService) -> None:
    http.post("/v1/classify", json={"inputs": ["a"]})
    http.get("/no/such/path/1")
    http.get("/no/such/path/2")
    samples = {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(http.get("/metrics").text)
    }
    now = service.state()
    assert samples["tanbr_merge_version"] == {(): now.merge_version}
    assert sum(samples["tanbr_task_mix"].values()) == pytest.approx(1)
    assert samples["tanbr_blend"] == {(str(k),): pytest.approx(now.blend[k]) for k in range(K)}
    assert samples["tanbr_regret_estimate"] == {(): now.estimated_regret}
    assert samples["tanbr_http_requests"]["/v1/classify", "200"] >= 1
    assert samples["tanbr_http_requests"]["other", "404"] >= 2  # a client cannot make up new series
    named = {
        "http_duration_seconds",
        "batch_size",
        "batch_seconds",
        "slot_reward",
        "merge_seconds",
        "queue",
        "pinned",
        "alarms",
    }
    named |= {"task_reward", "model_requests", "model_expected", "model_reward", "model_merge_version"}
    assert {f"tanbr_{name}" for name in named} | {"process_resident_memory_bytes"} <= set(samples)


def test_what_the_service_does_is_counted_and_logged() -> None:
    stream = io.StringIO()
    logs.to_stream(stream)
    metrics = Metrics()
    metrics.batch(8, 0.004)
    metrics.merged(0.02, 7)
    mix, blend, reward = np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([0.5, np.nan])
    metrics.slot(SlotRecord(3, 2, mix, blend, reward, np.array([4.0, 0.0])))
    metrics.alarm("the mix\n drifts")
    metrics.feedback("refused", 2)
    metrics.practised(96, 0.5)
    text = metrics.text().decode()
    assert "tanbr_batch_size_count 1.0" in text
    assert "tanbr_slot_reward_sum 0.5" in text
    assert "tanbr_alarms_total 1.0" in text
    assert 'tanbr_feedback_total{outcome="refused"} 2.0' in text
    for name, count in (("exercises", 1.0), ("rows", 96.0), ("seconds", 0.5)):
        assert f"tanbr_practice_{name}_total {count}" in text
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["merged", "slot", "alarm"]
    assert (lines[1]["reward"], lines[1]["blend"]) == (0.5, [1.0, 0.0])
    assert lines[2]["level"] == "warning"
    assert all(line["time"].endswith("Z") for line in lines)


def test_a_request_is_one_line_of_the_log_whatever_its_path() -> None:
    stream = io.StringIO()
    logs.to_stream(stream, level=logging.DEBUG)
    logs.say_request(route="other", path="/\n{}\x1b[31m" + "x" * 500, status=404, seconds=0.001)
    logs.to_stream(stream)
    logs.say_request(route="other", path="/", status=404, seconds=0.001)
    (line,) = stream.getvalue().splitlines()
    assert len(json.loads(line)["path"]) == logs.LONGEST
    assert "\x1b" not in line


def test_latencies_come_in_windows() -> None:
    now = 100.0
    latencies = LatencyHistory(clock=lambda: now)
    for seconds in (0.001, 0.002, 0.003):
        latencies.add(seconds, 1)
    now += 3 * WINDOW_SECONDS
    latencies.add(0.5, 1)
    windows = latencies.windows()
    assert [(window.time, window.requests) for window in windows] == [(100, 3), (110, 0), (120, 0), (130, 1)]
    assert windows[0].p50_ms == pytest.approx(2)
    assert windows[0].p99_ms == pytest.approx(2.98)
    assert np.isnan(windows[1].p50_ms)
    now += 10 * WINDOWS * WINDOW_SECONDS
    windows = latencies.windows()
    assert len(windows) == WINDOWS + 1
    assert sum(window.requests for window in windows) == 0
    assert windows[-1].time == pytest.approx(130 + 10 * WINDOWS * WINDOW_SECONDS)
    assert np.diff([window.time for window in windows]) == pytest.approx(WINDOW_SECONDS)
