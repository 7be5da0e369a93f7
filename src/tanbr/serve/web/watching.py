"""Routes for those who watch the server: people, dashboards, supervisors, Prometheus."""

from typing import Annotated

from fastapi import FastAPI, Query, Response

from tanbr.serve.web import logs, responses, state_responses, views
from tanbr.serve.web.answering import answer, view
from tanbr.serve.web.latency import LatencyHistory
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.service_api import ServiceApi
from tanbr.serve.web.workers import Workers

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def add_watching(app: FastAPI, service: ServiceApi, *, latencies: LatencyHistory) -> None:
    """Add the routes that show what the service does and did; a worker thread waits for the store."""
    workers = Workers("watching", threads=8, waiting=64)

    @app.get("/v1/state", tags=["watching"], response_model=state_responses.StateResponse)
    async def state() -> Response:
        """What the server does now: slot, merge version, task mix ψ, blend x and why, reward."""
        return view(views.state(await workers.run(service.state), service.info))

    @app.get("/v1/slots", tags=["watching"], response_model=state_responses.SlotsResponse)
    async def slots(
        limit: Annotated[int, Query(ge=1, le=1000, description="Most slots to give.")] = 100,
        before: Annotated[int | None, Query(ge=0, lt=2**63, description="Only slots before this one.")] = None,
    ) -> Response:
        """The last slots, newest first."""
        return await workers.run(lambda: view({"slots": [views.slot(slot) for slot in service.slots(limit, before)]}))

    @app.get("/v1/versions", tags=["watching"], response_model=state_responses.VersionsResponse)
    async def versions() -> Response:
        """The merge versions that can be rolled back to, newest first."""
        return await workers.run(lambda: view({"versions": [views.version(version) for version in service.versions()]}))

    @app.get("/v1/tree", tags=["watching"], response_model=state_responses.TreeResponse)
    async def tree(limit: Annotated[int, Query(ge=1, le=1000, description="Most nodes to give.")] = 200) -> Response:
        """The router's search tree: its most visited nodes."""
        return await workers.run(lambda: view(views.tree(service.tree(), service.state().task_mix, limit=limit)))

    @app.get("/v1/latency", tags=["watching"], response_model=state_responses.LatencyResponse)
    async def latency() -> Response:
        """How long answers took in the last hour, and how many texts were answered, in windows of ten seconds."""
        return view({"windows": [vars(window) for window in latencies.windows()]})


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

    @app.get("/healthz", tags=["watching"], response_model=responses.Health)
    async def alive() -> Response:
        """Whether the process lives, and every thread of it; if not, it should be restarted."""
        check_faults()
        return answer({"status": "ok"})

    @app.get("/readyz", tags=["watching"], response_model=responses.Health)
    async def ready() -> Response:
        """Whether requests are answered."""
        check_faults()
        if not service.ready:
            raise Refusal.later(503, "the server is starting or stopping", seconds=1)
        return answer({"status": "ok"})
