"""The HTTP application: its routes, what /openapi.json says of them, and the entrance before them all."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from tanbr.serve.web import logs
from tanbr.serve.web.auth import ADMIN, OPEN, Tokens
from tanbr.serve.web.classify import add_classify, add_embeddings
from tanbr.serve.web.completions import add_completions
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.entrance import Entrance
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.refusals import ErrorResponse, Refusal, refuse_with_sentences
from tanbr.serve.web.relay import add_relay
from tanbr.serve.web.routes import add_feedback, add_models, add_steering, add_supervision, add_watching

if TYPE_CHECKING:
    from tanbr.serve.service import Service

ANSWERS = {  # what each kind of model does, and where
    "classifier": ("classifies", "/v1/classify"),
    "encoder": ("embeds", "/v1/embeddings"),
    "text": ("writes", "/v1/completions", "/v1/chat/completions"),
}
ABOUT = """One dense model, merged from the experts of a Mixture-of-Experts model, that follows its traffic.

Every answer carries a request id, for feedback, and the merge version that gave it. Every refusal is one sentence."""
REFUSED = "A refusal: 4xx if the request must change; 429, 503 and 504 name in Retry-After when to send it again."


def create_app(
    service: "Service",
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
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": ErrorResponse, "description": REFUSED}},
    )
    info = service.info
    metrics.follow(service.state, info)
    writing = add_relay if info.relays else add_completions
    add_answers = {"classifier": add_classify, "encoder": add_embeddings, "text": writing}[info.kind]
    add_answers(app, service, config)
    add_feedback(app, service)
    add_models(app, service)
    add_watching(app, service, tokens, metrics)
    add_supervision(app, service)
    add_steering(app, service)
    add_dashboard(app)
    point_elsewhere(app, info.kind)
    refuse_with_sentences(app)
    describe_tokens(app, tokens)
    return Entrance(app, config=config, tokens=tokens, loopback=loopback, metrics=metrics, model=info.model)


def add_dashboard(app: FastAPI) -> None:
    """Add the dashboard: a page, and the files that it names."""
    page = (files("tanbr.serve.web") / "dashboard" / "index.html").read_bytes()

    @app.get("/", include_in_schema=False)
    async def dashboard() -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    app.mount("/dashboard", StaticFiles(packages=[("tanbr.serve.web", "dashboard")]))


def point_elsewhere(app: FastAPI, kind: str) -> None:
    """Say where to go on the paths for other kinds of models."""
    does, *here = ANSWERS[kind]

    async def elsewhere() -> Response:
        raise Refusal(404, f"the model here {does}: use {here[0]}")

    for _, *paths in ANSWERS.values():
        for path in set(paths) - set(here):
            app.post(path, include_in_schema=False)(elsewhere)


def describe_tokens(app: FastAPI, tokens: Tokens) -> None:
    """Have the OpenAPI document say which token each path needs; the entrance asks for it, not the routes."""
    document = app.openapi()  # which the app keeps
    bearer = {"type": "http", "scheme": "bearer"}
    document["components"]["securitySchemes"] = {"token": bearer, "admin": bearer}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith(ADMIN):
                operation["security"] = [{"admin": []}]
            elif tokens.closed and not path.startswith(OPEN):
                operation["security"] = [{"token": []}, {"admin": []}]
