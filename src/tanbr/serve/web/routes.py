"""The routes beside those that answer texts: feedback, the model's name, watching, supervision, steering.

A route that is no coroutine waits for the store, or for a merge, in a thread.
"""

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
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

if TYPE_CHECKING:
    from tanbr.serve.service import Service

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
THEIRS = {"inference_id": "request_id", "value": "reward"}  # TensorZero's names → ours
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


def add_feedback(app: FastAPI, service: "Service") -> None:
    """Add the route that rewards come in by."""
    secret, disk = service.client_secret, CapacityLimiter(8)  # threads: feedback that is stuck holds up nothing else

    class FeedbackItem(Sent, json_schema_extra={"examples": [{"feedback": [{"request_id": "0f3a-1", "reward": 1.0}]}]}):
        """How good an answer was (`reward`), or what was right (`task` and `label`), which the server then scores."""

        request_id: str
        reward: Annotated[float, Field(ge=0, le=1)] | None = None
        """From 0, useless, to 1, right."""
        task: Annotated[str, one_of(service.info.tasks)] | None = None
        """Which task it was, if that is known; else the monitor's belief shares the reward out."""
        label: str | float | None = None
        """The true label, or the grade on the task's scale."""

        @model_validator(mode="before")
        @classmethod
        def _other_names(cls, value: Any) -> Any:
            """Read TensorZero's names: `inference_id`, `value` (a number or a boolean), `metric_name`."""
            if not isinstance(value, dict) or "inference_id" not in value or {"request_id", "reward"} & value.keys():
                return value
            said = {THEIRS.get(name, name): one for name, one in value.items() if name != "metric_name"}
            reward = said.get("reward")
            return said | {"reward": float(reward) if isinstance(reward, bool) else reward}

        @model_validator(mode="after")
        def _either(self) -> "FeedbackItem":
            if (self.reward is None) == (self.label is None) or (self.label is not None and self.task is None):
                raise PydanticCustomError("feedback", "must have a reward, or a task and a label")
            return self

    class FeedbackRequest(Sent, json_schema_extra={"examples": [{"merge_version": 3}]}):
        """Feedback on answers. The first for an answer counts; sending it again changes nothing."""

        feedback: Annotated[list[FeedbackItem], Field(min_length=1, max_length=MOST_FEEDBACK, fail_fast=True)]

        @model_validator(mode="before")
        @classmethod
        def _one_alone(cls, value: Any) -> Any:
            """Read one piece without a list, as TensorZero's clients send it."""
            return {"feedback": [value]} if isinstance(value, dict) and "inference_id" in value else value

    @app.post("/v1/feedback", tags=["answers"])
    async def feedback(body: FeedbackRequest, request: Request) -> Receipt:
        """Say how good answers were, or what would have been right. Sending it twice counts once."""
        items = [Feedback(**item.model_dump()) for item in body.feedback]
        client = client_key(request.scope, secret)
        return await to_thread.run_sync(lambda: service.feedback(items, client=client), limiter=disk)


def add_models(app: FastAPI, service: "Service") -> None:
    """Add the route that OpenAI's clients look the model up with."""
    info, created = service.info, int(time.time())

    @app.get("/v1/models", tags=["answers"])
    def models() -> dict[str, Any]:
        """List what can be asked for: before an engine `tanbr`, the merge versions that answer, and each expert."""
        names = [info.model]
        if info.relays:
            versions = [f"{VERSION}{one.merge_version}" for one in service.state().models]
            names = [TANBR, *versions, *expert_ids(info)]
        cards = [{"id": name, "object": "model", "created": created, "owned_by": "tanbr"} for name in names]
        return {"object": "list", "data": cards}


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
    info = service.info
    constant = {name: getattr(info, name) for name in ("tasks", "slot_requests", "slot_seconds")}
    Limit = Annotated[int, Query(ge=1, le=1000, description="Most to give.")]

    @app.get("/v1/state", tags=["watching"])
    def state() -> StateResponse:
        """What the server does now: slot, merge version, task mix ψ, blend x and why, reward."""
        return StateResponse(**vars(service.state()), **constant, model=info, administration=tokens.administered)

    @app.get("/v1/slots", tags=["watching"])
    def slots(
        limit: Limit = 100,
        before: Annotated[int | None, Query(ge=0, lt=2**63, description="Only slots before this one.")] = None,
    ) -> dict[Literal["slots"], list[SlotView]]:
        """The last slots, newest first."""
        return {"slots": service.slots(limit, before)}

    @app.get("/v1/versions", tags=["watching"])
    def versions() -> dict[Literal["versions"], list[VersionView]]:
        """The merge versions that can be rolled back to, newest first."""
        return {"versions": service.versions()}

    @app.get("/v1/clients", tags=["watching"])
    def clients(limit: Limit = 100) -> dict[Literal["clients"], list[ClientView]]:
        """The clients that gave feedback, least trusted first: by the name of their token, or an opaque key."""
        return {"clients": service.clients()[:limit]}

    @app.get("/v1/latency", tags=["watching"])
    async def latency() -> dict[Literal["windows"], list[Window]]:
        """How long answers took in the last hour, and how many texts were answered, in windows of ten seconds."""
        return {"windows": metrics.latencies.windows()}

    @app.get("/metrics", tags=["watching"], response_class=Response, responses={200: {"content": {PROMETHEUS: {}}}})
    def prometheus() -> Response:
        """Everything that Prometheus may want to know."""
        return Response(metrics.text(), media_type=PROMETHEUS)


def add_supervision(app: FastAPI, service: "Service") -> None:
    """Add the routes of supervisors, which wait for nobody else's work."""

    def check_faults() -> None:
        if service.faults():  # which were alarms in the log, each once
            raise Refusal(503, "a part of the server has failed: restart it; its log says which", retry=5)

    @app.get("/healthz", tags=["watching"])
    async def alive() -> dict[str, str]:
        """Whether the process lives, and every thread of it; if not, it should be restarted."""
        check_faults()
        return {"status": "ok"}

    @app.get("/readyz", tags=["watching"])
    async def ready() -> dict[str, str]:
        """Whether requests are answered."""
        check_faults()
        if not service.ready:
            raise Refusal(503, "the server is starting or stopping", retry=1)
        return {"status": "ok"}


def add_steering(app: FastAPI, service: "Service") -> None:
    """Add the routes that change what is served; the entrance asks for the administration token."""
    experts = service.info.experts
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

    def steered(action: str, request: Request) -> Steered:
        now, by = service.state(), request.scope["tanbr.token"].name or address_of(request.scope)
        logs.say("admin", action=action, by=by, slot=now.slot, merge_version=now.merge_version)
        return Steered(now.slot, now.merge_version, now.pinned)

    @app.post("/v1/admin/pin", tags=["steering"])
    def pin(body: PinRequest, request: Request) -> Steered:
        """Serve one blend, or one merge version, until `unpin`; the router chooses nothing meanwhile."""
        target = body.merge_version if body.blend is None else body.blend
        if target is None or None not in (body.blend, body.merge_version):
            raise Refusal(422, "the body must have either a blend or a merge_version")
        service.pin(target)
        return steered("pin", request)

    @app.post("/v1/admin/unpin", tags=["steering"])
    def unpin(request: Request) -> Steered:
        """Let the router choose again, from the next slot on."""
        service.unpin()
        return steered("unpin", request)

    @app.post("/v1/admin/rollback", tags=["steering"])
    def rollback(request: Request, body: RollbackRequest | None = None) -> Steered:
        """Serve an earlier merge version until the slot ends; the router is told that its blend was bad."""
        service.rollback(None if body is None else body.merge_version)
        return steered("rollback", request)

    @app.post("/v1/admin/slot", tags=["steering"])
    def slot(request: Request) -> Steered:
        """End the slot now."""
        service.end_slot()
        return steered("slot", request)
