"""The HTTP application: the routes that answer, those that watch and steer, and the gate before them all."""

import mimetypes
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from tanbr.serve.records import Feedback
from tanbr.serve.web import completions, logs, operating, shapes, views
from tanbr.serve.web.answering import answer, refuse_with_sentences, settled
from tanbr.serve.web.auth import Tokens
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.gate import Gate
from tanbr.serve.web.metrics import Metrics
from tanbr.serve.web.openapi import describe
from tanbr.serve.web.recent import Latencies
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.strict import StrictRoute

if TYPE_CHECKING:  # torch comes with it, and an address that is taken should be found out without
    from tanbr.serve.service import Service

ANSWERS = ("/v1/classify", "/v1/completions")


def create_app(
    service: "Service", *, config: HttpConfig, tokens: Tokens, metrics: Metrics, loopback: bool = True
) -> ASGIApp:
    """Make the application around a service, which it starts and stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        logs.say("ready", model=service.info.model, merge_version=service.state().merge_version)
        yield
        done = await run_in_threadpool(service.stop, float(config.stop_seconds))
        logs.say("stopped", finished=done)

    app = FastAPI(
        title="tanbr",
        version=version("tanbr"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    latencies = Latencies()
    metrics.follow(service.state, service.info)
    app.router.route_class = StrictRoute
    answering = add_classify if service.info.kind == "classifier" else completions.add_completions
    answering(app, service, config)
    add_feedback(app, service, config)
    add_models(app, service)
    operating.add_watching(app, service, metrics=metrics, latencies=latencies)
    operating.add_steering(app, service)
    add_dashboard(app)
    _point_elsewhere(app, service)
    refuse_with_sentences(app)
    describe(app, service.info, config, tokens)

    def on_request(*, route: str, method: str, path: str, status: int, seconds: float, client: str) -> None:
        metrics.request(route=route, status=status, seconds=seconds)
        logs.say_request(route=route, method=method, path=path, status=status, seconds=seconds, client=client)
        if route in ANSWERS and status == 200:
            latencies.add(seconds)

    return Gate(app, config=config, tokens=tokens, loopback=loopback, on_request=on_request)


def add_classify(app: FastAPI, service: "Service", config: HttpConfig) -> None:
    """Add the route of a service whose model classifies."""
    info = service.info
    columns = {label: column for column, label in enumerate(info.columns[: info.classes])}
    everything = list(columns.values())

    @app.post(
        "/v1/classify", tags=["answers"], response_model=shapes.ClassifyResponse, response_model_exclude_none=True
    )
    async def classify(body: shapes.ClassifyRequest) -> Response:
        """Classify texts, or pairs of texts. Nobody needs to say which task they belong to."""
        if len(body.inputs) > config.inputs:
            raise Refusal(
                422, f"inputs must have at most {config.inputs} items (got {len(body.inputs)})", param="inputs"
            )
        for i, item in enumerate(body.inputs):
            if len(item if isinstance(item, str) else max(item, key=len)) > config.text_chars:
                raise Refusal(
                    422, f"inputs[{i}] must have at most {config.text_chars} characters", param=f"inputs[{i}]"
                )
        allowed = everything
        if body.labels is not None:
            strange = next((label for label in body.labels if label not in columns), None)
            if strange is not None:
                raise Refusal(
                    422, f"labels must be some of {', '.join(columns)} (got {strange[:60]!r})", param="labels"
                )
            allowed = sorted({columns[label] for label in body.labels})
        texts = [item if isinstance(item, str) else (item[0], item[1]) for item in body.inputs]
        answered = await settled(service.submit(texts), seconds=config.answer_seconds)
        return answer(views.classified(answered, info, allowed))


def add_feedback(app: FastAPI, service: "Service", config: HttpConfig) -> None:
    """Add the route that rewards come in by."""

    @app.post("/v1/feedback", tags=["answers"], response_model=shapes.FeedbackResponse)
    def feedback(body: shapes.FeedbackRequest) -> Response:
        """Say how good answers were, or what would have been right. Sending it twice counts once."""
        if len(body.feedback) > config.feedback:
            raise Refusal(422, f"feedback must have at most {config.feedback} items", param="feedback")
        receipt = service.feedback([Feedback(**item.model_dump()) for item in body.feedback])
        counts = {"accepted": receipt.accepted, "repeated": receipt.repeated, "unknown": receipt.unknown}
        return answer(counts | {"outcomes": receipt.outcomes})


def add_models(app: FastAPI, service: "Service") -> None:
    """Add the routes that OpenAI's clients look the model up with."""
    model = {"id": service.info.model, "object": "model", "created": int(time.time()), "owned_by": "tanbr"}

    @app.get("/v1/models", tags=["answers"], response_model=shapes.Models)
    async def models() -> Response:
        """List the model that is served, as OpenAI does."""
        return answer({"object": "list", "data": [model]})

    @app.get("/v1/models/{name}", tags=["answers"], response_model=shapes.Model)
    async def one_model(name: str) -> Response:
        """Look the model up by its id."""
        if name != service.info.model:
            raise Refusal(404, f"the model here is {service.info.model!r}", param="model", code="model_not_found")
        return answer(model)


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


def _point_elsewhere(app: FastAPI, service: "Service") -> None:
    """Say where to go on the path for the other kind of model."""
    classifier = service.info.kind == "classifier"
    path, there = ("/v1/completions", "/v1/classify") if classifier else ("/v1/classify", "/v1/completions")
    does = "classifies" if classifier else "writes"

    @app.post(path, include_in_schema=False)
    async def elsewhere() -> Response:
        raise Refusal(404, f"the model here {does}: use {there}")
