"""Figures about the server: for Prometheus, and of the last hour for the dashboard."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from tanbr.serve.records import FloatOrNaN, Observer, ServiceInfo, ServiceState, Shown
from tanbr.types import SlotRecord

TIMES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REWARDS = tuple(n / 10 for n in range(1, 11))
WINDOW_SECONDS = 10.0
WINDOWS = 360  # an hour
SAMPLED = 4096  # answers of a window that its percentiles are taken from


class Metrics(Observer):
    """What Prometheus reads: counts and times as they happen, and the service's state when it is asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._requests = Counter(
            "tanbr_http_requests", "Requests answered or refused", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "tanbr_http_seconds", "From head to answer", ["route"], buckets=TIMES, registry=self.registry
        )
        self._batch = Histogram("tanbr_batch_size", "Texts in a batch", buckets=SIZES, registry=self.registry)
        self._batch_seconds = Histogram(
            "tanbr_batch_seconds", "From a batch's forming to its answers", buckets=TIMES, registry=self.registry
        )
        self._merge = Histogram("tanbr_merge_seconds", "Time a merge took", buckets=TIMES, registry=self.registry)
        self._reward = Histogram("tanbr_slot_reward", "Mean reward of a slot", buckets=REWARDS, registry=self.registry)
        self._alarms = Counter("tanbr_alarms", "Alarms raised", registry=self.registry)

    def request(self, *, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self._batch.observe(size)
        self._batch_seconds.observe(seconds)

    def merged(self, seconds: float, version: int) -> None:  # noqa: ARG002 - the version is read when it is asked for
        """Count a merge."""
        self._merge.observe(seconds)

    def slot(self, record: SlotRecord) -> None:
        """Note a slot's reward."""
        if record.counts.any():
            self._reward.observe(record.total_reward)

    def alarm(self, text: str) -> None:  # noqa: ARG002 - alarms are counted here, and told in the log
        """Count an alarm."""
        self._alarms.inc()

    def follow(self, state: Callable[[], ServiceState], info: ServiceInfo) -> None:
        """Also show what the service is doing when asked."""
        self.registry.register(_State(state, info))

    def text(self) -> bytes:
        """Write everything in Prometheus's text format."""
        return generate_latest(self.registry)


class _State:
    """ψ, x, reward and the rest of the state, as gauges."""

    def __init__(self, state: Callable[[], ServiceState], info: ServiceInfo) -> None:
        self._state, self._info = state, info

    def describe(self) -> list[Metric]:
        """Nothing beforehand: the registry would otherwise read the state to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the state once."""
        now = self._state()
        for name, says, value in (
            ("slot", "Number of the slot", now.slot),
            ("merge_version", "Merge version that answers", now.merge_version),
            ("regret_estimate", "How far the router believes the blend to be below its best", now.estimated_regret),
            ("queue", "Texts that wait", now.queue),
            ("pinned", "Whether an operator holds the blend", now.pinned),
            ("answered", "Texts answered since the start", now.answered),
            ("merge_last_seconds", "Time the last merge took", now.last_merge_seconds),
            ("pause_last_seconds", "How long the last swap kept requests waiting", now.last_pause_seconds),
            ("uptime_seconds", "Since the start", now.uptime),
        ):
            yield GaugeMetricFamily(f"tanbr_{name}", says, value=float(value))
        tasks, experts = self._info.tasks, [str(expert) for expert in range(self._info.experts)]
        for name, says, label, names, values in (
            ("task_mix", "ψ: share of a task in the mix that the blend was chosen for", "task", tasks, now.task_mix),
            ("task_reward", "r: reward of a task in the last slot that was told", "task", tasks, now.reward),
            ("blend", "x: weight of an expert as served", "expert", experts, now.blend),
        ):
            family = GaugeMetricFamily(f"tanbr_{name}", says, labels=[label])
            for key, value in zip(names, values.tolist(), strict=True):
                family.add_metric([key], value)
            yield family
        for name, says in (
            ("requests", "Requests of this slot that a model of the panel has answered"),
            ("expected", "Share of the requests that a model of the panel should get"),
            ("reward", "Mean reward of a model of the panel"),
            ("merge_version", "Merge version of a model of the panel"),
        ):
            family = GaugeMetricFamily(f"tanbr_model_{name}", says, labels=["model"])
            for place, model in enumerate(now.models):
                family.add_metric([str(place)], float(getattr(model, name)))
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


@dataclass
class LatencyHistory:
    """The last hour's windows; one thread writes."""

    clock: Callable[[], float] = time.time
    _past: deque[Window] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    _began: float = field(init=False)
    _seconds: list[float] = field(default_factory=list)
    _requests: int = 0
    _texts: int = 0

    def __post_init__(self) -> None:
        self._began = self.clock()

    def add(self, seconds: float) -> None:
        """Note one answered request."""
        self._turn()
        self._requests += 1
        if len(self._seconds) < SAMPLED:
            self._seconds.append(seconds)

    def add_texts(self, count: int) -> None:
        """Note how many texts were answered."""
        self._turn()
        self._texts += count

    def windows(self) -> list[Window]:
        """All windows, oldest first; the last is still open."""
        self._turn()
        return [*self._past, self._window()]

    def _turn(self) -> None:
        elapsed = int((self.clock() - self._began) // WINDOW_SECONDS)
        if elapsed <= 0:
            return
        self._past.append(self._window())
        for missed in range(max(1, elapsed - WINDOWS), elapsed):
            self._past.append(Window(self._began + missed * WINDOW_SECONDS, 0, 0, float("nan"), float("nan")))
        self._began += elapsed * WINDOW_SECONDS
        self._seconds, self._requests, self._texts = [], 0, 0

    def _window(self) -> Window:
        p50, p99 = np.percentile(self._seconds, [50, 99]) * 1e3 if self._seconds else (np.nan, np.nan)
        return Window(self._began, self._requests, self._texts, float(p50), float(p99))
