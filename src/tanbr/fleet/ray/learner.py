"""The learner as an actor of Ray, which starts it again when it dies: it goes on from its store."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from tanbr.errors import StateError, TanbrError
from tanbr.fleet.fleet import Fleet
from tanbr.fleet.host import LearnerHost
from tanbr.fleet.link import LearnerGone
from tanbr.fleet.messages import Hello, Reply, Report, Welcome
from tanbr.fleet.ray.config import ClusterConfig
from tanbr.fleet.ray.machine import RayMachine
from tanbr.serve.build import build
from tanbr.serve.service import Service
from tanbr.serve.web import logs
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.server import Observers

NAMESPACE = "tanbr"
POLL = 1.0  # seconds after which a replica that asks is answered even if nothing came up: it reports once a second
UNLOCKED = 10.0  # seconds in which the learner before, which was killed, must have let go of its folder
CALL = 120.0  # seconds for a call; a dead learner is found out at once
AGAIN = 20.0  # seconds for which what may be asked twice is asked again
REPEATABLE = ("feedback", "state", "slots", "versions", "tree", "metrics", "unpin")
LOOK = 2.0  # seconds between two looks at which replicas live
THREADS = 32  # that wait for the disk, and for merges


class LearnerActor:
    """Runs a `LearnerHost`; what keeps it from starting is said to whoever asks."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._refused = ""
        self._workers = ThreadPoolExecutor(THREADS, "tanbr-calls")
        logs.to_stream()
        try:
            self._host = _opened(config)
        except TanbrError as error:
            self._refused = str(error)
        me = ray.get_runtime_context().current_actor
        threading.Thread(target=self._linger, args=(me,), name="tanbr-linger", daemon=True).start()

    def _linger(self, me: Any) -> None:
        """End for good once there has been no replica for a while; the dead are forgotten meanwhile."""
        used = time.monotonic()
        while time.monotonic() - used < self._config.linger:
            time.sleep(LOOK)
            if not self._refused:
                self._host.fleet.look()
                used = time.monotonic() if self._host.fleet.members else used
        if not self._refused:
            self._host.stop(float(self._config.http.stop_seconds))
        ray.kill(me)

    async def hello(self, hello: Hello) -> Welcome:
        """Take a replica in."""
        return await self._run(lambda host: host.hello(hello))

    async def ask(self, report: Report) -> Reply:
        """Take a report, and say what to do as soon as there is something, or after a second."""
        waiting = asyncio.wrap_future(await self._run(lambda host: host.ask(report)))
        await asyncio.wait([waiting], timeout=POLL)
        if waiting.done() and not waiting.cancelled():
            return waiting.result()
        waiting.cancel()
        return await self._run(lambda host: host.idle(report.member))

    async def leave(self, report: Report) -> None:
        """Take the last report of a replica."""
        await self._run(lambda host: host.leave(report))

    async def call(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Do what a client or an operator wants."""
        return await self._run(lambda host: host.call(method, *arguments, **named))

    async def members(self) -> list[tuple[str, int | None, bool]]:
        """Name the replicas, with the slot of the order that each follows, and whether it may be answering."""
        return await self._run(lambda host: [(one.name, one.at, one.answering) for one in host.fleet.members])

    async def stop(self, seconds: float) -> bool:
        """Save and end; whether that was done in time."""
        return bool(self._refused) or await self._run(lambda host: host.stop(seconds))

    async def _run(self, work: Callable[[LearnerHost], Any]) -> Any:
        if self._refused:
            raise StateError(self._refused)
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, self._host)


def _opened(config: ClusterConfig) -> LearnerHost:
    """Start the learner; one that was killed may hold the folder for another moment."""
    ends = time.monotonic() + UNLOCKED
    while True:
        try:
            return _host(config)
        except StateError as error:
            if "in use by another server" not in str(error) or time.monotonic() > ends:
                raise
            time.sleep(0.5)


def _host(config: ClusterConfig) -> LearnerHost:
    metrics = Metrics()

    def make(fleet: Fleet) -> Service:
        return build(
            config.checkpoint,
            experts=config.experts,
            blend_only=config.blend_only,
            config=config.serve,
            router=config.router,
            monitor=config.monitor,
            state=config.state,
            history=config.history,
            survey=config.survey,
            warm_start=config.warm_start,
            groups=config.groups,
            adopt=config.adopt,
            force=config.force,
            observer=Observers([metrics, logs.Journal()]),
            fleet=fleet,
        )

    host = LearnerHost(make, RayMachine(), patience=config.patience, metrics=metrics.text)
    metrics.follow(host.state, host.service.info)
    return host


def name_of(config: ClusterConfig) -> str:
    """Name the learner's actor: there is one for an application."""
    return f"{config.name}-learner"


def found_learner(config: ClusterConfig) -> Any:
    """Give the learner's actor, started if there is none; it outlives whoever started it."""
    actor = ray.remote(LearnerActor).options(
        name=name_of(config),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=10_000,
        num_cpus=0,
        resources={f"node:{config.learner_node}": 0.001},  # every machine has one of these: that is, there
    )
    return actor.remote(config)


def end_learner(config: ClusterConfig, *, seconds: float) -> bool:
    """Have the learner save, and end it for good; whether all was saved."""
    saved = True
    try:
        actor = ray.get_actor(name_of(config), namespace=NAMESPACE)
    except ValueError:
        return saved
    try:
        saved = ray.get(actor.stop.remote(seconds), timeout=seconds + 5.0)
    except RayError:
        saved = False
    with contextlib.suppress(RayError, ValueError):
        ray.kill(actor)
    return saved


class RayLearner:
    """The way to the learner through Ray."""

    def __init__(self, config: ClusterConfig) -> None:
        self._actor = found_learner(config)

    def hello(self, hello: Hello) -> Welcome:
        """Be taken in."""
        welcome: Welcome = self._get("hello", hello)
        return welcome

    def ask(self, report: Report) -> Reply:
        """Report, and wait for something to do."""
        reply: Reply = self._get("ask", report, seconds=10 * POLL)
        return reply

    def leave(self, report: Report) -> None:
        """Report for the last time."""
        self._get("leave", report, seconds=10 * POLL)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Have the learner do something; while it is started again, what may be done twice waits for it."""
        ends = time.monotonic() + AGAIN
        while True:
            try:
                return self._get("call", method, arguments, named)
            except LearnerGone:
                if method not in REPEATABLE or time.monotonic() > ends:
                    raise
                time.sleep(0.2)

    def _get(self, method: str, *arguments: Any, seconds: float = CALL) -> Any:
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=seconds)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, TanbrError) else error) from None
        except (RayActorError, GetTimeoutError) as error:
            raise LearnerGone(f"the learner does not answer ({type(error).__name__}); it is started again") from None
