"""The learner as an actor of Ray, which starts it again when it dies: it goes on from its store; and its settings."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray
from pydantic import Field
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from tanbr.errors import StateError, TanbrError
from tanbr.fleet.fleet import Reply
from tanbr.fleet.learner import LearnerHost
from tanbr.fleet.replica import LearnerGone
from tanbr.monitor.config import MonitorConfig
from tanbr.router.config import RouterConfig
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig, StartConfig
from tanbr.serve.engine import Engine
from tanbr.serve.service import Service
from tanbr.serve.web import logs
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import Metrics

Result = TypeVar("Result")
NAMESPACE, SERVE_NAMESPACE = "tanbr", "serve"  # of the learner; in which Ray Serve keeps its replicas
ASK = 10.0  # seconds for a report: it is answered after five at most
UNLOCKED = 10.0  # seconds in which a learner that was killed must have let go of its folder
CALL = 120.0  # seconds for a call; a dead learner is found out at once
AGAIN = 20.0  # seconds for which a call that may be made twice is made again
REPEATABLE = ("feedback", "state", "slots", "versions", "clients", "metrics", "unpin")
LOOK = 2.0  # seconds between two looks at which replicas live
LINGER = 60.0  # seconds without any replica after which the learner saves and ends: a rolling restart takes less
THREADS = 32  # that wait for the disk, and for merges


class ClusterConfig(StartConfig):
    """What is served on a Ray cluster, and by how many. Files are at the same place on every machine."""

    name: str = Field(default="tanbr", pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the application; its learner is called so, too."""
    replicas: int = Field(default=2, ge=1, le=10_000)
    """Replicas that answer."""
    cpus: int = Field(default=1, ge=1)
    """Cores of a replica: it answers as many batches at once."""
    learner_node: str = "__internal_head__"
    """Address of the machine that the learner runs on, where its state is; the cluster's head if not given."""
    serve: ServeConfig = Field(default_factory=ServeConfig)
    """How the model is served."""
    http: HttpConfig = Field(default_factory=HttpConfig)
    """What a client may ask."""
    router: RouterConfig | None = None
    """The router's settings."""
    monitor: MonitorConfig | None = None
    """The monitor's settings."""


class RayMachine:
    """What Ray knows of replicas, by the names of their actors: whether they live."""

    def alive(self, member: str) -> bool:
        """Whether there is such an actor: the name of a dead one is gone."""
        return self._actor(member) is not None

    def end(self, member: str) -> None:
        """End the actor; Ray Serve starts another."""
        if (actor := self._actor(member)) is not None:
            ray.kill(actor)

    def _actor(self, member: str) -> Any:
        try:
            return ray.get_actor(member, namespace=SERVE_NAMESPACE)
        except ValueError:
            return None


class LearnerActor:
    """Runs a `LearnerHost`; what keeps it from starting is raised by every call."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._refused = ""
        self._workers = ThreadPoolExecutor(THREADS, "tanbr-calls")
        logs.to_stream()
        try:
            self._host = _open_host(config)
        except TanbrError as error:
            self._refused = str(error)
        me = ray.get_runtime_context().current_actor
        threading.Thread(target=self._linger, args=(me,), name="tanbr-linger", daemon=True).start()

    def _linger(self, me: Any) -> None:
        """Forget dead replicas; end for good once there has been no replica for a while."""
        used = time.monotonic()
        while time.monotonic() - used < LINGER:
            time.sleep(LOOK)
            if not self._refused:
                self._host.fleet.look()
                used = time.monotonic() if self._host.fleet.members else used
        if not self._refused:
            self._host.service.stop(float(self._config.http.stop_seconds))
        ray.kill(me)

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call the host; one who asks hears what to do as soon as there is something, or after a while."""
        if method != "ask":
            return await self._run(lambda host: host.call(method, *arguments, **named))
        (report,), host = arguments, self._there()
        waiting = asyncio.wrap_future(host.ask(report))  # in this thread: of a thousand replicas each asks every second
        await asyncio.wait([waiting], timeout=host.fleet.every)
        if waiting.done() and not waiting.cancelled():
            return waiting.result()
        waiting.cancel()
        return Reply()

    async def members(self) -> list[tuple[str, int | None, bool]]:
        """Name the replicas, with the slot of the order that each follows, and whether it may be answering."""
        return await self._run(
            lambda host: [(name, one.last.at, one.answering) for name, one in host.fleet.members.items()]
        )

    async def stop(self, seconds: float) -> bool:
        """Save and end; whether that was done in time."""
        return bool(self._refused) or await self._run(lambda host: host.service.stop(seconds))

    async def _run(self, work: Callable[[LearnerHost], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, self._there())

    def _there(self) -> LearnerHost:
        if self._refused:
            raise StateError(self._refused)
        return self._host


def _open_host(config: ClusterConfig) -> LearnerHost:
    """Start the learner; one that was killed may hold the folder for another moment."""
    metrics = Metrics()
    given = config.model_dump(include=StartConfig.model_fields.keys() - {"token_file", "admin_token_file"})

    def make(make_engine: Callable[..., Engine]) -> Service:
        return build(
            **given,
            config=config.serve,
            router=config.router,
            monitor=config.monitor,
            observer=metrics,
            make_engine=make_engine,
        )

    def opened() -> LearnerHost:
        return LearnerHost(make, RayMachine(), metrics=metrics.text)

    host = again(opened, StateError, seconds=UNLOCKED, says="in use by another server")
    metrics.follow(host.state, host.service.info)
    return host


def again(work: Callable[[], Result], passing: type[TanbrError], *, seconds: float, says: str = "") -> Result:
    """Do something, for so many seconds again and again, as long as it fails in a `passing` way that `says` this."""
    ends = time.monotonic() + seconds
    while True:
        try:
            return work()
        except passing as error:
            if says not in str(error) or time.monotonic() > ends:
                raise
            time.sleep(0.2)


def name_of(config: ClusterConfig) -> str:
    """Name the learner's actor: there is one for an application."""
    return f"{config.name}-learner"


def found_learner(config: ClusterConfig) -> Any:
    """Give the learner's actor, started if there is none; it outlives the process that started it."""
    actor = ray.remote(LearnerActor).options(
        name=name_of(config),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=10_000,
        num_cpus=0,
        resources={f"node:{config.learner_node}": 0.001},  # every machine has one of these: so it runs there
    )
    return actor.remote(config)


def end_learner(config: ClusterConfig, *, seconds: float) -> bool:
    """Have the learner save, and end it for good; whether all was saved."""
    try:
        actor = ray.get_actor(name_of(config), namespace=NAMESPACE)
    except ValueError:
        return True
    try:
        saved: bool = ray.get(actor.stop.remote(seconds), timeout=seconds + 5.0)
    except RayError:
        saved = False
    with contextlib.suppress(RayError, ValueError):
        ray.kill(actor)
    return saved


class RayLearner:
    """The way to the learner through Ray."""

    def __init__(self, config: ClusterConfig) -> None:
        self._actor = found_learner(config)

    def __call__(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Have the learner do something; while it is started again, calls that may be made twice wait for it."""
        seconds = ASK if method in ("ask", "leave") else CALL

        def call() -> Any:
            try:
                return get(self._actor.call.remote(method, *arguments, **named), seconds=seconds)
            except (RayActorError, GetTimeoutError) as error:
                says = f"the learner does not answer ({type(error).__name__}); it is started again"
                raise LearnerGone(says) from None

        return again(call, LearnerGone, seconds=AGAIN if method in REPEATABLE else 0.0)


def get(answer: Any, *, seconds: float) -> Any:
    """Wait for an answer of an actor; an error of ours that it raised is raised here."""
    try:
        return ray.get(answer, timeout=seconds)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, TanbrError) else error) from None
