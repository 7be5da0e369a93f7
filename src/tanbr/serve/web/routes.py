"""The routes beside those that answer texts: feedback, the model's name, watching, supervision, steering.

Worker threads wait for the store and for merges.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.types import Scope

from tanbr.serve.panel import VERSION
from tanbr.serve.records import (
    ClientView,
    Feedback,
    Receipt,
    ServedModel,
    ServiceError,
    ServiceState,
    Shown,
    SlotView,
    VersionView,
)
from tanbr.serve.relay import TANBR
from tanbr.serve.web import logs
from tanbr.serve.web.auth import Token, Tokens
from tanbr.serve.web.bodies import Sent, one_of
from tanbr.serve.web.config import MOST_FEEDBACK
from tanbr.serve.web.entrance import address_of, client_of
from tanbr.serve.web.metrics import Metrics, Window
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.relay import expert_ids
from tanbr.serve.web.waiting import Workers

if TYPE_CHECKING:
    from tanbr.serve.service import Service

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
FEEDBACK_LOST = "the last feedback was refused, because it could not be kept; the server's log says why"
Version = Annotated[int, Field(ge=0, lt=2**63)]


def client_key(scope: Scope, secret: bytes) -> str:
    """Name a request's client: as the list of tokens does, or opaquely by its address and the token that it shows.

    Nothing that a client makes up is in it, so one address is one client (an operator at it is another).
    """
    token: Token | None = scope["tanbr.token"]
    if token is not None and token.name:
        return token.name
    said = f"{'' if token is None else 'admin' if token.admin else 'general'}\n{client_of(address_of(scope))}"
    return hashlib.blake2b(said.encode(), key=secret, digest_size=8).hexdigest()


def add_feedback(app: FastAPI, service: "Service", metrics: Metrics) -> None:
    """Add the route that rewards come in by."""
    workers, secret = Workers("feedback", threads=8, waiting=64), service.client_secret

    class FeedbackItem(Sent, json_schema_extra={"examples": [{"feedback": [{"request_id": "0f3a-1", "reward": 1.0}]}]}):
        """How good an answer was (`reward`), or what was right (`task` and `label`), which the server then scores."""

        request_id: str
        reward: Annotated[float, Field(ge=0, le=1)] | None = None
        """From 0, useless, to 1, right."""
        task: Annotated[str, one_of(service.info.tasks)] | None = None
        """Which task it was, if that is known; else the monitor's belief shares the reward out."""
        label: str | float | None = None
        """The true label, or the grade on the task's scale."""

        @model_validator(mode="after")
        def _either(self) -> "FeedbackItem":
            if (self.reward is None) == (self.label is None) or (self.label is not None and self.task is None):
                raise PydanticCustomError("feedback", "must have a reward, or a task and a label")
            return self

    class FeedbackRequest(Sent, json_schema_extra={"examples": [{"merge_version": 3}]}):
        """Feedback on answers. The first for an answer counts; sending it again changes nothing."""

        feedback: Annotated[list[FeedbackItem], Field(min_length=1, max_length=MOST_FEEDBACK, fail_fast=True)]

    @app.post("/v1/feedback", tags=["answers"])
    async def feedback(body: FeedbackRequest, request: Request) -> Receipt:
        """Say how good answers were, or what would have been right. Sending it twice counts once."""
        items = [Feedback(**item.model_dump()) for item in body.feedback]
        client = client_key(request.scope, secret)
        try:
            receipt = await workers.run(lambda: service.feedback(items, client=client))
        except ServiceError:
            metrics.feedback_lost = True
            raise
        metrics.feedback_lost = False
        return receipt


def add_models(app: FastAPI, service: "Service") -> None:
    """Add the routes that OpenAI's clients look the model up with."""
    info, created, workers = service.info, int(time.time()), Workers("listing of models", threads=2, waiting=16)

    async def names() -> list[str]:
        if not info.relays:
            return [info.model]
        versions = [one.merge_version for one in (await workers.run(service.state)).models]
        return [TANBR, *(f"{VERSION}{version}" for version in versions), *expert_ids(info)]

    def card(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "tanbr"}

    @app.get("/v1/models", tags=["answers"])
    async def models() -> dict[str, Any]:
        """List what can be asked for: before an engine `tanbr`, the merge versions that answer, and each expert."""
        return {"object": "list", "data": [card(name) for name in await names()]}

    @app.get("/v1/models/{name}", tags=["answers"])
    async def one_model(name: str) -> dict[str, Any]:
        """Look a model up by its id."""
        known = await names()
        if name not in known:
            raise Refusal.model(known[0])
        return card(name)


@dataclass(frozen=True, eq=False, kw_only=True)
class StateResponse(ServiceState):
    """What the server does now, and what it serves. Vectors run over `tasks` or over the experts."""

    tasks: tuple[str, ...]
    slot_requests: int | None
    slot_seconds: float | None
    model: ServedModel
    administration: bool
    """Whether /v1/admin is open to those who have its token."""


@dataclass(frozen=True)
class Steered(Shown):
    """The state after the change: what is served, and whether it is pinned."""

    slot: int
    merge_version: int
    pinned: bool


def add_watching(app: FastAPI, service: "Service", tokens: Tokens, metrics: Metrics) -> None:
    """Add the routes that show what the service does and did."""
    workers, info = Workers("watching", threads=8, waiting=64), service.info

    @app.get("/v1/state", tags=["watching"])
    async def state() -> StateResponse:
        """What the server does now: slot, merge version, task mix ψ, blend x and why, reward."""
        constant = {name: getattr(info, name) for name in ("tasks", "slot_requests", "slot_seconds")}
        now = await workers.run(service.state)
        return StateResponse(**vars(now), **constant, model=info, administration=tokens.administered)

    @app.get("/v1/slots", tags=["watching"])
    async def slots(
        limit: Annotated[int, Query(ge=1, le=1000, description="Most slots to give.")] = 100,
        before: Annotated[int | None, Query(ge=0, lt=2**63, description="Only slots before this one.")] = None,
    ) -> dict[Literal["slots"], list[SlotView]]:
        """The last slots, newest first."""
        return {"slots": await workers.run(lambda: service.slots(limit, before))}

    @app.get("/v1/versions", tags=["watching"])
    async def versions() -> dict[Literal["versions"], list[VersionView]]:
        """The merge versions that can be rolled back to, newest first."""
        return {"versions": await workers.run(service.versions)}

    @app.get("/v1/clients", tags=["watching"])
    async def clients(
        limit: Annotated[int, Query(ge=1, le=1000, description="Most clients to give.")] = 100,
    ) -> dict[Literal["clients"], list[ClientView]]:
        """The clients that gave feedback, least trusted first: by the name of their token, or an opaque key."""
        return {"clients": (await workers.run(service.clients))[:limit]}

    @app.get("/v1/latency", tags=["watching"])
    async def latency() -> dict[Literal["windows"], list[Window]]:
        """How long answers took in the last hour, and how many texts were answered, in windows of ten seconds."""
        return {"windows": metrics.latencies.windows()}


def add_supervision(app: FastAPI, service: "Service", metrics: Metrics) -> None:
    """Add the routes of supervisors, which wait for nobody else's work."""
    workers = Workers("reading of metrics", threads=2, waiting=16)
    told: set[str] = set()  # faults that the log has already

    def check_faults() -> None:
        faults = service.faults()
        for fault in set(faults) - told:
            logs.say_fault(fault)
            told.add(fault)
        if faults:
            raise Refusal(503, "a part of the server has failed: restart it; its log says which", retry=5)

    @app.get("/metrics", tags=["watching"], response_class=Response, responses={200: {"content": {PROMETHEUS: {}}}})
    async def prometheus() -> Response:
        """Everything that Prometheus may want to know."""
        return Response(await workers.run(metrics.text), media_type=PROMETHEUS)

    @app.get("/healthz", tags=["watching"])
    async def alive() -> dict[str, str]:
        """Whether the process lives, and every thread of it; if not, it should be restarted."""
        check_faults()
        return {"status": "ok"}

    @app.get("/readyz", tags=["watching"])
    async def ready() -> dict[str, str]:
        """Whether requests are answered; `detail` says what does not work all the same."""
        check_faults()
        if not service.ready:
            raise Refusal(503, "the server is starting or stopping", retry=1)
        return {"status": "ok"} | ({"detail": FEEDBACK_LOST} if metrics.feedback_lost else {})


def add_steering(app: FastAPI, service: "Service") -> None:
    """Add the routes that change what is served; the entrance asks for the administration token."""
    workers, experts = Workers("administration", threads=4, waiting=16), service.info.experts
    Weights = list[Annotated[float, Field(ge=0, le=1)]]

    class PinRequest(Sent, json_schema_extra={"examples": [{"merge_version": 3}]}):
        """What to serve until `unpin`: a blend or a merge version."""

        blend: Annotated[Weights, Field(min_length=experts, max_length=experts, fail_fast=True)] | None = None
        """One weight for each expert; they sum to 1."""
        merge_version: Version | None = None

    class RollbackRequest(Sent):
        """Where to go back to."""

        merge_version: Version | None = None
        """The last good one before the present if not given."""

    async def act(action: str, work: Callable[[], Any], request: Request) -> Steered:
        await workers.run(work)
        now, by = await workers.run(service.state), request.scope["tanbr.token"].name or address_of(request.scope)
        logs.say("admin", action=action, by=by, slot=now.slot, merge_version=now.merge_version)
        return Steered(now.slot, now.merge_version, now.pinned)

    @app.post("/v1/admin/pin", tags=["steering"])
    async def pin(body: PinRequest, request: Request) -> Steered:
        """Serve one blend, or one merge version, until `unpin`; the router chooses nothing meanwhile."""
        target = body.merge_version if body.blend is None else body.blend
        if target is None or None not in (body.blend, body.merge_version):
            raise Refusal(422, "the body must have either a blend or a merge_version")
        return await act("pin", lambda: service.pin(target), request)

    @app.post("/v1/admin/unpin", tags=["steering"])
    async def unpin(request: Request) -> Steered:
        """Let the router choose again, from the next slot on."""
        return await act("unpin", service.unpin, request)

    @app.post("/v1/admin/rollback", tags=["steering"])
    async def rollback(request: Request, body: RollbackRequest | None = None) -> Steered:
        """Serve an earlier merge version until the slot ends; the router is told that its blend was bad."""
        version = None if body is None else body.merge_version
        return await act("rollback", lambda: service.rollback(version), request)

    @app.post("/v1/admin/slot", tags=["steering"])
    async def slot(request: Request) -> Steered:
        """End the slot now."""
        return await act("slot", service.end_slot, request)
