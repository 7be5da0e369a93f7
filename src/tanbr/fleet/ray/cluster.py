"""The application on a Ray cluster, its replicas, and its life from the command line."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, cast

import ray
from ray import serve
from ray.exceptions import RayError

from tanbr.errors import ConfigError
from tanbr.fleet.ray.learner import ClusterConfig, RayLearner, again, end_learner, found_learner, get
from tanbr.fleet.replica import ReplicaService
from tanbr.serve.build import opened
from tanbr.serve.config import usable_cores
from tanbr.serve.records import ServiceError, ServiceInfo, ServiceState
from tanbr.serve.web import logs
from tanbr.serve.web.app import create_app
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.entrance import LOOPBACK
from tanbr.serve.web.metrics import Metrics

HEALTH = 2.0  # seconds between two looks at a replica's health
QUEUE = 1024  # requests that a replica may hold: its own queue refuses what is too much
START = 300.0  # seconds for the learner to start
JOIN = 120.0  # seconds for a replica to reach the learner


class Replica:
    """What Ray Serve starts, looks after and sends requests to: the HTTP application around a `ReplicaService`."""

    def __init__(self, config: ClusterConfig, tokens: Tokens) -> None:
        self._config, self._tokens = config, tokens
        logs.to_stream()
        method = config.serve.method if "method" in config.serve.model_fields_set else None
        moe = opened(
            config.checkpoint,
            experts=config.experts,
            blend_only=config.blend_only,
            base=config.base,
            blend=config.serve.blend,
            method=method,
        )
        member = str(ray.get_runtime_context().get_actor_name())
        learner = RayLearner(config)
        self._service = again(
            lambda: ReplicaService(moe, learner, member=member, cpus=config.cpus), ServiceError, seconds=JOIN
        )

    def __serve_build_asgi_app__(self) -> Any:
        """Make the HTTP application; Ray Serve starts and stops it."""
        metrics = Metrics()
        metrics.text = self._service.metrics  # type: ignore[method-assign]  # the learner has those of the whole fleet
        return create_app(
            cast(Any, self._service),  # it has the methods of a `Service`
            config=self._config.http,
            tokens=self._tokens,
            metrics=metrics,
            loopback=self._config.http.host in LOOPBACK,
            seconds_to_stop=lambda: float(self._config.http.stop_seconds),
        )

    def check_health(self) -> None:
        """Tell Ray Serve that this replica must be replaced, if it must."""
        faults = self._service.faults()
        if faults:
            raise RuntimeError(faults[0])


def app(args: ClusterConfig) -> Any:
    """Make the application: what a Ray Serve configuration names as its `import_path`, with these `args`."""
    config = args.model_copy(update={"state": args.state.absolute()})
    tokens = Tokens.read(os.environ, token_file=args.token_file, admin_token_file=args.admin_token_file)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="Replica",
        num_replicas=config.replicas,
        max_ongoing_requests=QUEUE,
        health_check_period_s=HEALTH,
        graceful_shutdown_timeout_s=float(config.http.stop_seconds),
        ray_actor_options={"num_cpus": config.cpus},
        logging_config={"enable_access_log": False},  # our own log has requests, if they are wanted
    )
    return deployment.bind(config, tokens)


def _joined(address: str | None, *, cpus: int) -> bool:
    """Join the cluster at an address, or one that is found, or else start one here; whether it is our own."""
    try:
        ray.init(address=address or "auto", log_to_driver=True, ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is not None:
            raise ConfigError(f"there is no Ray cluster at {address}: {error}") from None
        ray.init(address="local", num_cpus=max(cpus, usable_cores()), include_dashboard=False, log_to_driver=True)
        return True
    return False


def run(
    config: ClusterConfig,
    *,
    address: str | None,
    stop: threading.Event,
    ready: Callable[[str, ServiceInfo, ServiceState], None],
) -> bool:
    """Serve until `stop` is set, then finish what was accepted and save; whether all was saved."""
    http = config.http
    config = config.model_copy(update={"state": config.state.absolute()})
    with contextlib.ExitStack() as leaving:
        own = _joined(address, cpus=config.replicas * config.cpus)
        leaving.callback(ray.shutdown)
        if own:
            leaving.callback(serve.shutdown)
        try:
            learner = found_learner(config)
            info, now = (get(learner.call.remote(name), seconds=START) for name in ("info", "state"))
            serve.start(http_options={"host": http.host, "port": http.port})
            serve.run(app(config), name=config.name, route_prefix="/")
            ready(f"http://{http.host}:{http.port}", info, now)
            stop.wait()
        finally:
            with contextlib.suppress(RayError, KeyError):
                serve.delete(config.name)
            saved = end_learner(config, seconds=float(http.stop_seconds))
    return saved
