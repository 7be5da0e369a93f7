"""The application on a Ray cluster, and its life from the command line."""

import contextlib
import ipaddress
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError

from tanbr.errors import ConfigError, TanbrError
from tanbr.fleet.ray.config import ClusterConfig
from tanbr.fleet.ray.learner import end_learner, found_learner
from tanbr.fleet.ray.replica import Replica
from tanbr.serve.config import usable_cores
from tanbr.serve.records import ServiceInfo, ServiceState
from tanbr.serve.web.auth import Tokens

HEALTH = 2.0  # seconds between two looks at a replica's health
QUEUE = 1024  # requests that a replica may hold: its own queue refuses what is too much
START = 300.0  # seconds for the learner


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
    return deployment.bind(config, tokens, _is_loopback(config.http.host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def connected(address: str | None, *, cpus: int) -> Iterator[bool]:
    """Join the cluster at an address, or one that is found, or else start one here; whether it is our own."""
    own = False
    try:
        ray.init(address=address or "auto", log_to_driver=True, ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is not None:
            raise ConfigError(f"there is no Ray cluster at {address}: {error}") from None
        own = True
        ray.init(address="local", num_cpus=max(cpus, usable_cores()), include_dashboard=False, log_to_driver=True)
    try:
        yield own
    finally:
        ray.shutdown()


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
    with connected(address, cpus=config.replicas * config.cpus) as own:
        try:
            learner = found_learner(config)
            info, now = _asked(learner, "info"), _asked(learner, "state")
            serve.start(http_options={"host": http.host, "port": http.port})
            serve.run(app(config), name=config.name, route_prefix="/")
            ready(f"http://{http.host}:{http.port}", info, now)
            while not stop.wait(1.0):
                pass
        finally:
            with contextlib.suppress(RayError, KeyError):
                serve.delete(config.name)
            saved = end_learner(config, seconds=float(http.stop_seconds))
            if own:
                serve.shutdown()
    return saved


def _asked(learner: Any, method: str) -> Any:
    """Ask the learner something at the start: what keeps it from starting is the user's to know, in a sentence."""
    try:
        return ray.get(learner.call.remote(method, (), {}), timeout=START)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, TanbrError) else error) from None
