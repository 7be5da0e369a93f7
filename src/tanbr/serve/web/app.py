"""The HTTP application: the routes that answer, those that watch and steer, and the entrance before them all."""

import mimetypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files

from fastapi import FastAPI, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from tanbr.serve.records import ServiceInfo
from tanbr.serve.web import logs
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.classify import add_classify
from tanbr.serve.web.completions import add_completions
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.entrance import Entrance
from tanbr.serve.web.metrics import LatencyHistory, Metrics
from tanbr.serve.web.openapi import SERVED, describe
from tanbr.serve.web.refusals import Refusal, refuse_with_sentences
from tanbr.serve.web.routes import add_feedback, add_models, add_steering, add_supervision, add_watching
from tanbr.serve.web.service_api import ServiceApi
from tanbr.serve.web.strict_json import strict_route

VALUES_EACH = 8  # JSON values that one text or one piece of feedback may be written with; half of them suffice


def create_app(
    service: ServiceApi,
    *,
    config: HttpConfig,
    tokens: Tokens,
    metrics: Metrics,
    loopback: bool,
    seconds_to_stop: Callable[[], float],
) -> ASGIApp:
    """Make the application around a service, which it starts and stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        logs.say("ready", model=service.info.model, merge_version=service.state().merge_version)
        yield
        done = await run_in_threadpool(service.stop, seconds_to_stop())
        logs.say("stopped", finished=done)

    app = FastAPI(
        title="tanbr",
        version=version("tanbr"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    latencies = LatencyHistory()
    metrics.follow(service.state, service.info)
    app.router.route_class = strict_route(most_values(service.info, config))
    add_answers = add_classify if service.info.kind == "classifier" else add_completions
    add_answers(app, service, config, latencies)
    add_feedback(app, service, config, tokens)
    add_models(app, service.info)
    add_watching(app, service, latencies=latencies)
    add_supervision(app, service, metrics=metrics)
    add_steering(app, service)
    add_dashboard(app)
    point_elsewhere(app, service.info)
    refuse_with_sentences(app)
    describe(app, service.info, config, tokens)

    def on_request(*, route: str, method: str, path: str, status: int, seconds: float, client: str) -> None:
        metrics.request(route=route, status=status, seconds=seconds)
        logs.say_request(route=route, method=method, path=path, status=status, seconds=seconds, client=client)
        if route in SERVED and status == 200:
            latencies.add(seconds)

    return Entrance(app, config=config, tokens=tokens, loopback=loopback, on_request=on_request)


def most_values(info: ServiceInfo, config: HttpConfig) -> int:
    """Say how many JSON values a body may hold: what the largest request that is allowed needs, and some more."""
    return VALUES_EACH * max(config.inputs, config.feedback) + info.classes + info.experts + 64


def add_dashboard(app: FastAPI) -> None:
    """Add the routes of the dashboard: a few files, read once."""
    folder = files("tanbr.serve.web") / "dashboard"
    pages = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    @app.get("/", include_in_schema=False)
    async def dashboard() -> Response:
        return Response(pages["index.html"], media_type="text/html; charset=utf-8")

    @app.get("/dashboard/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in pages:
            raise Refusal(404, "there is no such part of the dashboard")
        return Response(pages[name], media_type=mimetypes.guess_type(name)[0])


def point_elsewhere(app: FastAPI, info: ServiceInfo) -> None:
    """Say where to go on the path for the other kind of model."""
    classify, *write = SERVED
    classifies = info.kind == "classifier"
    does, paths, path = ("classifies", write, classify) if classifies else ("writes", [classify], write[0])

    async def elsewhere() -> Response:
        raise Refusal(404, f"the model here {does}: use {path}")

    for other in paths:
        app.post(other, include_in_schema=False)(elsewhere)
