"""The routes beside those that answer texts: feedback, the model's name, watching, supervision, steering.

Worker threads wait for the store and for merges.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from starlette.datastructures import Headers
from starlette.types import Scope

from tanbr.router import TreeView
from tanbr.serve.records import (
    Feedback,
    FloatOrNaN,
    Numbers,
    Receipt,
    ServedModel,
    ServiceInfo,
    ServiceState,
    Shown,
    SlotView,
    VersionView,
    as_json,
    json_writer,
)
from tanbr.serve.web import logs
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.bodies import (
    AdminResponse,
    FeedbackRequest,
    Health,
    Model,
    Models,
    PinBlend,
    PinRequest,
    RollbackRequest,
)
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.entrance import address_of, client_of
from tanbr.serve.web.metrics import LatencyHistory, Metrics, Window
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.service_api import ServiceApi, Workers
from tanbr.types import TaskMix

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def answer(value: Any) -> Response:
    """Answer with a value as JSON."""
    return Response(as_json(value), media_type="application/json")


def client_key(scope: Scope, tokens: Tokens, secret: bytes) -> str:
    """Name a request's client, opaquely: its address, and which of the server's own tokens it shows.

    Nothing that a client makes up is in it, so one address is one client (an operator at it is another).
    """
    said = f"{tokens.shown(Headers(scope=scope).get('authorization'))}\n{client_of(address_of(scope))}"
    return hashlib.blake2b(said.encode(), key=secret, digest_size=8).hexdigest()


def add_feedback(app: FastAPI, service: ServiceApi, config: HttpConfig, tokens: Tokens) -> None:
    """Add the route that rewards come in by."""
    workers, secret = Workers("feedback", threads=8, waiting=64), service.client_secret

    @app.post("/v1/feedback", tags=["answers"], response_model=Receipt)
    async def feedback(body: FeedbackRequest, request: Request) -> Response:
        """Say how good answers were, or what would have been right. Sending it twice counts once."""
        if len(body.feedback) > config.feedback:
            raise Refusal(422, f"feedback must have at most {config.feedback} items", param="feedback")
        items = [Feedback(**item.model_dump()) for item in body.feedback]
        client = client_key(request.scope, tokens, secret)
        return answer(await workers.run(lambda: service.feedback(items, client=client)))


def add_models(app: FastAPI, info: ServiceInfo) -> None:
    """Add the routes that OpenAI's clients look the model up with."""
    model = Model(id=info.model, object="model", created=int(time.time()), owned_by="tanbr")

    @app.get("/v1/models", tags=["answers"], response_model=Models)
    async def models() -> Response:
        """List the model that is served, as OpenAI does."""
        return answer(Models(object="list", data=[model]))

    @app.get("/v1/models/{name}", tags=["answers"], response_model=Model)
    async def one_model(name: str) -> Response:
        """Look the model up by its id."""
        if name != info.model:
            raise Refusal(404, f"the model here is {info.model!r}", param="model", code="model_not_found")
        return answer(model)


@dataclass(frozen=True, eq=False, kw_only=True)
class StateResponse(ServiceState):
    """What the server does now, and what it serves. Vectors run over `tasks` or over the experts."""

    tasks: tuple[str, ...]
    slot_requests: int | None
    slot_seconds: float | None
    model: ServedModel


@dataclass(frozen=True)
class SlotsResponse(Shown):
    """Slots, newest first."""

    slots: list[SlotView]


@dataclass(frozen=True)
class VersionsResponse(Shown):
    """Versions, newest first."""

    versions: list[VersionView]


@dataclass(frozen=True)
class LatencyResponse(Shown):
    """Windows, oldest first; the last is still open."""

    windows: list[Window]


@dataclass(frozen=True, eq=False)
class TreeNode(Shown):
    """A node of the router's search tree."""

    parent: int
    depth: int
    blend: Numbers  # (K,)
    visits: float
    value: FloatOrNaN
    """Predicted reward for the present task mix."""
    leaf: bool


@dataclass(frozen=True)
class TreeResponse(Shown):
    """The search tree, parents before children; empty for a router without one."""

    nodes: list[TreeNode]
    total: int
    """How many there are; the ones shown are the most visited."""

    @classmethod
    def of(cls, view: TreeView | None, task_mix: TaskMix, *, limit: int) -> "TreeResponse":
        """Show the most visited nodes, with all their ancestors, and what each would earn with the mix ψ (V,)."""
        if view is None:
            return cls([], 0)
        kept: set[int] = set()
        for node in (-view.visits).argsort(kind="stable").tolist():
            if len(kept) >= limit:
                break
            while node >= 0 and node not in kept:
                kept.add(node)
                node = int(view.parent[node])
        rows = sorted(kept)
        place = {node: at for at, node in enumerate(rows)} | {-1: -1}
        columns = view.parent, view.depth, view.visits, view.value @ task_mix, view.leaf
        nodes = [
            TreeNode(place[parent], depth, blend, visits, value, leaf)
            for blend, parent, depth, visits, value, leaf in zip(
                view.blend[rows].round(6), *(column[rows].tolist() for column in columns), strict=True
            )
        ]
        return cls(nodes, len(view))


for _kind in (Receipt, StateResponse, SlotsResponse, VersionsResponse, TreeResponse, LatencyResponse):
    json_writer(_kind)


def add_watching(app: FastAPI, service: ServiceApi, *, latencies: LatencyHistory) -> None:
    """Add the routes that show what the service does and did."""
    workers, info = Workers("watching", threads=8, waiting=64), service.info

    @app.get("/v1/state", tags=["watching"], response_model=StateResponse)
    async def state() -> Response:
        """What the server does now: slot, merge version, task mix ψ, blend x and why, reward."""
        now, slot = vars(await workers.run(service.state)), (info.slot_requests, info.slot_seconds)
        return answer(StateResponse(**now, tasks=info.tasks, slot_requests=slot[0], slot_seconds=slot[1], model=info))

    @app.get("/v1/slots", tags=["watching"], response_model=SlotsResponse)
    async def slots(
        limit: Annotated[int, Query(ge=1, le=1000, description="Most slots to give.")] = 100,
        before: Annotated[int | None, Query(ge=0, lt=2**63, description="Only slots before this one.")] = None,
    ) -> Response:
        """The last slots, newest first."""
        return await workers.run(lambda: answer(SlotsResponse(service.slots(limit, before))))

    @app.get("/v1/versions", tags=["watching"], response_model=VersionsResponse)
    async def versions() -> Response:
        """The merge versions that can be rolled back to, newest first."""
        return await workers.run(lambda: answer(VersionsResponse(service.versions())))

    @app.get("/v1/tree", tags=["watching"], response_model=TreeResponse)
    async def tree(limit: Annotated[int, Query(ge=1, le=1000, description="Most nodes to give.")] = 200) -> Response:
        """The router's search tree: its most visited nodes."""
        return await workers.run(lambda: answer(TreeResponse.of(service.tree(), service.state().task_mix, limit=limit)))

    @app.get("/v1/latency", tags=["watching"], response_model=LatencyResponse)
    async def latency() -> Response:
        """How long answers took in the last hour, and how many texts were answered, in windows of ten seconds."""
        return answer(LatencyResponse(latencies.windows()))


def add_supervision(app: FastAPI, service: ServiceApi, *, metrics: Metrics) -> None:
    """Add the routes of supervisors, which wait for nobody else's work."""
    workers = Workers("reading of metrics", threads=2, waiting=16)
    told: set[str] = set()  # faults that the log has already

    def check_faults() -> None:
        faults = service.faults()
        for fault in set(faults) - told:
            logs.say_fault(fault)
            told.add(fault)
        if faults:
            raise Refusal.later(503, "a part of the server has failed: restart it; its log says which", seconds=5)

    @app.get("/metrics", tags=["watching"], response_class=Response, responses={200: {"content": {PROMETHEUS: {}}}})
    async def prometheus() -> Response:
        """Everything that Prometheus may want to know."""
        return Response(await workers.run(metrics.text), media_type=PROMETHEUS)

    @app.get("/healthz", tags=["watching"], response_model=Health)
    async def alive() -> Response:
        """Whether the process lives, and every thread of it; if not, it should be restarted."""
        check_faults()
        return answer(Health(status="ok"))

    @app.get("/readyz", tags=["watching"], response_model=Health)
    async def ready() -> Response:
        """Whether requests are answered."""
        check_faults()
        if not service.ready:
            raise Refusal.later(503, "the server is starting or stopping", seconds=1)
        return answer(Health(status="ok"))


def add_steering(app: FastAPI, service: ServiceApi) -> None:
    """Add the routes that change what is served; the entrance asks for the administration token."""
    workers = Workers("administration", threads=4, waiting=16)

    async def act(action: str, work: Callable[[], Any]) -> Response:
        await workers.run(work)
        now = await workers.run(service.state)
        logs.say("admin", action=action, slot=now.slot, merge_version=now.merge_version)
        return answer(AdminResponse(slot=now.slot, merge_version=now.merge_version, pinned=now.pinned))

    @app.post("/v1/admin/pin", tags=["steering"], response_model=AdminResponse)
    async def pin(body: PinRequest) -> Response:
        """Serve one blend, or one merge version, until `unpin`; the router chooses nothing meanwhile."""
        target = body.blend if isinstance(body, PinBlend) else body.merge_version
        return await act("pin", lambda: service.pin(target))

    @app.post("/v1/admin/unpin", tags=["steering"], response_model=AdminResponse)
    async def unpin() -> Response:
        """Let the router choose again, from the next slot on."""
        return await act("unpin", service.unpin)

    @app.post("/v1/admin/rollback", tags=["steering"], response_model=AdminResponse)
    async def rollback(body: RollbackRequest | None = None) -> Response:
        """Serve an earlier merge version until the slot ends; the router is told that its blend was bad."""
        return await act("rollback", lambda: service.rollback(None if body is None else body.merge_version))

    @app.post("/v1/admin/slot", tags=["steering"], response_model=AdminResponse)
    async def slot() -> Response:
        """End the slot now."""
        return await act("slot", service.end_slot)
