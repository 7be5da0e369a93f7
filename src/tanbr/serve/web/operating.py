"""Routes for those who watch and steer the server."""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Response

from tanbr.serve.web import logs, shapes, views
from tanbr.serve.web.answering import answer, view
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.recent import Latencies
from tanbr.serve.web.refusals import Refusal

if TYPE_CHECKING:  # torch comes with it, and an address that is taken should be found out without
    from tanbr.serve.service import Service

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def add_watching(app: FastAPI, service: "Service", *, metrics: Metrics, latencies: Latencies) -> None:
    """Add the routes that only look. They are plain functions, so that a worker thread waits for the store."""

    @app.get("/v1/state", tags=["watching"], response_model=shapes.StateResponse)
    def state() -> Response:
        """What the server does now: slot, merge version, task mix ψ, blend x, reward."""
        return view(views.state(service.state(), service.info))

    @app.get("/v1/slots", tags=["watching"], response_model=shapes.SlotsResponse)
    def slots(
        limit: Annotated[int, Query(ge=1, le=1000, description="Most slots to give.")] = 100,
        before: Annotated[int | None, Query(ge=0, lt=2**63, description="Only slots before this one.")] = None,
    ) -> Response:
        """The last slots, newest first."""
        found = service.slots(limit, before)
        return view({"slots": [views.slot(slot) for slot in found]})

    @app.get("/v1/versions", tags=["watching"], response_model=shapes.VersionsResponse)
    def versions() -> Response:
        """The merge versions that can be rolled back to, newest first."""
        return view({"versions": [views.version(version) for version in service.versions()]})

    @app.get("/v1/tree", tags=["watching"], response_model=shapes.TreeResponse)
    def tree(limit: Annotated[int, Query(ge=1, le=1000, description="Most nodes to give.")] = 200) -> Response:
        """The router's search tree: its most visited nodes."""
        return view(views.tree(service.tree(), service.state().task_mix, limit=limit))

    @app.get("/v1/latency", tags=["watching"], response_model=shapes.LatencyResponse)
    async def latency() -> Response:
        """How long answers took in the last hour, in windows of ten seconds."""
        return view({"windows": [vars(window) for window in latencies.windows()]})

    @app.get("/metrics", tags=["watching"], response_class=Response, responses={200: {"content": {PROMETHEUS: {}}}})
    def prometheus() -> Response:
        """Everything that Prometheus may want to know."""
        return Response(metrics.text(), media_type=PROMETHEUS)

    @app.get("/healthz", tags=["watching"], response_model=shapes.Health)
    async def alive() -> Response:
        """Whether the process lives."""
        return answer({"status": "ok"})

    @app.get("/readyz", tags=["watching"], response_model=shapes.Health)
    async def ready() -> Response:
        """Whether requests are answered."""
        if not service.ready:
            raise Refusal.later(503, "the server is starting or stopping", seconds=1)
        return answer({"status": "ok"})


def add_steering(app: FastAPI, service: "Service") -> None:
    """Add the routes that change what is served; the gate asks for the administration token."""

    def done(action: str, **facts: Any) -> Response:
        now = service.state()
        logs.say("admin", action=action, slot=now.slot, merge_version=now.merge_version, **facts)
        return view({"slot": now.slot, "merge_version": now.merge_version, "pinned": now.pinned})

    @app.post("/v1/admin/pin", tags=["steering"], response_model=shapes.AdminResponse)
    def pin(body: shapes.PinRequest) -> Response:
        """Serve one blend, or one merge version, until `unpin`; the router chooses nothing meanwhile."""
        service.pin(body.blend if isinstance(body, shapes.PinBlend) else body.merge_version)
        return done("pin")

    @app.post("/v1/admin/unpin", tags=["steering"], response_model=shapes.AdminResponse)
    def unpin() -> Response:
        """Let the router choose again, from the next slot on."""
        service.unpin()
        return done("unpin")

    @app.post("/v1/admin/rollback", tags=["steering"], response_model=shapes.AdminResponse)
    def rollback(body: shapes.RollbackRequest | None = None) -> Response:
        """Serve an earlier merge version until the slot ends; the router is told that its blend was bad."""
        service.rollback(None if body is None else body.merge_version)
        return done("rollback")

    @app.post("/v1/admin/slot", tags=["steering"], response_model=shapes.AdminResponse)
    def slot() -> Response:
        """End the slot now."""
        service.end_slot()
        return done("slot")
