"""A replica of Ray Serve: the same HTTP application as in one process, around a service that answers here."""

import time
from typing import Any

import ray

from tanbr.fleet.link import LearnerGone
from tanbr.fleet.ray.config import ClusterConfig
from tanbr.fleet.ray.learner import RayLearner
from tanbr.fleet.replica_service import ReplicaService
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.serve.records import ServiceError
from tanbr.serve.web import logs
from tanbr.serve.web.app import create_app
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.metrics import Metrics

JOIN = 120.0  # seconds for a learner to start


class FleetMetrics(Metrics):
    """What is read of the whole fleet: the learner's."""

    service: ReplicaService

    def text(self) -> bytes:
        """Ask the learner."""
        return self.service.metrics()


class Replica:
    """What Ray Serve starts, looks after and sends requests to."""

    def __init__(self, config: ClusterConfig, tokens: Tokens, loopback: bool) -> None:
        self._config, self._tokens, self._loopback = config, tokens, loopback
        logs.to_stream()
        method = config.serve.method if "method" in config.serve.model_fields_set else None
        place = embedded.path() if config.checkpoint is None else config.checkpoint
        moe = open_moe(place, experts=config.experts, blend_only=config.blend_only, method=method)
        member = str(ray.get_runtime_context().get_actor_name())
        learner, ends = RayLearner(config), time.monotonic() + JOIN
        while True:
            try:
                self._service = ReplicaService(moe, learner, member=member, cpus=config.cpus)
                return
            except (LearnerGone, ServiceError):
                if time.monotonic() > ends:
                    raise
                time.sleep(0.2)

    def __serve_build_asgi_app__(self) -> Any:
        """Make the HTTP application; Ray Serve starts and stops it."""
        metrics = FleetMetrics()
        metrics.service = self._service
        return create_app(
            self._service,
            config=self._config.http,
            tokens=self._tokens,
            metrics=metrics,
            loopback=self._loopback,
            seconds_to_stop=lambda: float(self._config.http.stop_seconds),
        )

    def check_health(self) -> None:
        """Say to Ray Serve that this replica must be replaced, if it must."""
        faults = self._service.faults()
        if faults:
            raise RuntimeError(faults[0])
