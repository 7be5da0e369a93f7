"""Figures about the server: for Prometheus, and of the last hour for the dashboard."""
# ruff: noqa: D102 - an `Observer` says what its methods hear

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from tanbr.serve.records import FloatOrNaN, Observer, ServiceInfo, ServiceState, Shown
from tanbr.serve.web import logs
from tanbr.types import SlotRecord

TIMES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REWARDS = tuple(n / 10 for n in range(1, 11))
WINDOW_SECONDS = 10.0
WINDOWS = 360  # an hour


class Metrics(Observer):
    """What Prometheus reads: counts and times as they happen, and the service's state when it is asked for.

    Merges, slots and alarms are logged as well; batches and requests are too many.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.latencies = LatencyHistory()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._requests = counter("tanbr_http_requests", "Requests answered or refused", ["route", "status"])
        self._seconds = histogram("tanbr_http_duration_seconds", "From head to answer", ["route"], buckets=TIMES)
        self._batch = histogram("tanbr_batch_size", "Texts in a batch", buckets=SIZES)
        self._batch_seconds = histogram("tanbr_batch_seconds", "From a batch's forming to its answers", buckets=TIMES)
        self._merge = histogram("tanbr_merge_seconds", "Time a merge took", buckets=TIMES)
        self._turn = histogram("tanbr_turn_seconds", "Time a part of a turn took", ["part"], buckets=TIMES)
        self._turn_cpu = counter("tanbr_turn_cpu_seconds", "Processor time of a part of turns", ["part"])
        self._reward = histogram("tanbr_slot_reward", "Mean reward of a slot", buckets=REWARDS)
        self._alarms = counter("tanbr_alarms", "Alarms raised")
        self._feedback = counter("tanbr_feedback", "Feedback accepted, repeated, unknown or refused", ["outcome"])
        self._turns = counter("tanbr_conversation_requests", "By version: begun, kept, moved", ["outcome"])
        self._exercises = counter("tanbr_practice_exercises", "Blends tried on logged requests")
        self._practised = counter("tanbr_practice_rows", "Logged requests answered in practice")
        self._practice_seconds = counter("tanbr_practice_seconds", "Seconds of one core spent on practice")

    def request(self, route: str, *, status: int, seconds: float, texts: int) -> None:
        """Count a request, which may have answered texts; `route` is one of a fixed set of names."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if texts and status == 200:
            self.latencies.add(seconds, texts)

    def batch(self, size: int, seconds: float) -> None:
        self._batch.observe(size)
        self._batch_seconds.observe(seconds)

    def merged(self, seconds: float, version: int) -> None:
        self._merge.observe(seconds)
        logs.say("merged", merge_version=version, seconds=round(seconds, 4))

    def turned(self, parts: Mapping[str, tuple[float, float]]) -> None:
        for part, (seconds, processor) in parts.items():
            self._turn.labels(part).observe(seconds)
            self._turn_cpu.labels(part).inc(processor)

    def slot(self, record: SlotRecord) -> None:
        if record.counts.any():
            self._reward.observe(record.total_reward)
        logs.say(
            "slot", slot=record.slot, merge_version=record.merge_version, reward=round(record.total_reward, 4),
            rewarded=float(record.counts.sum()), task_mix=record.task_mix.round(4), blend=record.blend.round(4),
        )  # fmt: skip

    def feedback(self, outcome: str, count: int) -> None:
        self._feedback.labels(outcome).inc(count)

    def conversation(self, outcome: str) -> None:
        self._turns.labels(outcome).inc()

    def practised(self, rows: int, seconds: float) -> None:
        self._exercises.inc()
        self._practised.inc(rows)
        self._practice_seconds.inc(seconds)

    def alarm(self, text: str) -> None:
        self._alarms.inc()
        logs.say("alarm", level=logging.WARNING, text=text)

    def follow(self, state: Callable[[], ServiceState], info: ServiceInfo) -> None:
        """Also show what the service is doing when asked."""
        self._state, self._info = state, info
        self.registry.register(self)

    def text(self) -> bytes:
        """Write everything in Prometheus's text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Read ψ, x, reward and the rest of the state once, as gauges."""
        now = self._state()
        gain, models = now.gain, now.models
        for name, says, value in (
            ("merge_version", "Merge version that answers", now.merge_version),
            ("regret_estimate", "How far the router believes the blend to be below its best", now.estimated_regret),
            ("queue", "Texts that wait", now.queue),
            ("pinned", "Whether an operator holds the blend", now.pinned),
            ("gain", "What learning adds to a request's reward, by slots held back", gain.total if gain else np.nan),
            ("gain_error", "Half of the interval around that", gain.error if gain else np.nan),
        ):
            yield GaugeMetricFamily(f"tanbr_{name}", says, value=float(value))
        for label, name, says, values in (
            ("task", "task_mix", "ψ: share of a task in the mix that the blend was chosen for", now.task_mix),
            ("task", "task_reward", "r: reward of a task in the last slot that was told", now.reward),
            ("expert", "blend", "x: weight of an expert as served", now.blend),
            ("model", "model_requests", "Requests of this slot that it has answered", [m.requests for m in models]),
            ("model", "model_expected", "Share of the requests that it should get", [m.expected for m in models]),
            ("model", "model_reward", "Mean reward of a model of the panel", [m.reward for m in models]),
            ("model", "model_merge_version", "Its merge version", [m.merge_version for m in models]),
        ):
            family = GaugeMetricFamily(f"tanbr_{name}", says, labels=[label])
            for place, value in enumerate(values):
                family.add_metric([self._info.tasks[place] if label == "task" else str(place)], float(value))
            yield family


@dataclass(frozen=True)
class Window(Shown):
    """Ten seconds of answers."""

    time: float
    """When it began, in seconds since 1970."""
    requests: int
    texts: int
    """Texts or prompts that were answered; a request holds one or more."""
    p50_ms: FloatOrNaN
    p99_ms: FloatOrNaN


class LatencyHistory:
    """The last hour's windows; one thread writes."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._began = clock, clock()
        self._seconds: list[float] = []  # that each request of the open window took
        self._texts = 0
        self._past: deque[Window] = deque(maxlen=WINDOWS)

    def add(self, seconds: float, texts: int) -> None:
        """Note one answered request."""
        self.windows()
        self._seconds.append(seconds)
        self._texts += texts

    def windows(self) -> list[Window]:
        """All windows, oldest first, also those in which nothing was asked; the last is still open."""
        over = int((self._clock() - self._began) // WINDOW_SECONDS)
        if over > WINDOWS:  # more than an hour without a question: none of it is shown
            self._close((over - WINDOWS) * WINDOW_SECONDS)
        for _ in range(min(over, WINDOWS)):
            self._past.append(self._window())
            self._close(WINDOW_SECONDS)
        return [*self._past, self._window()]

    def _close(self, seconds: float) -> None:
        self._began, self._seconds, self._texts = self._began + seconds, [], 0

    def _window(self) -> Window:
        p50, p99 = np.percentile(self._seconds, [50, 99]) * 1e3 if self._seconds else (np.nan, np.nan)
        return Window(self._began, len(self._seconds), self._texts, float(p50), float(p99))
