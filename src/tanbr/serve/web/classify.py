"""The route of a model that classifies."""

from fastapi import FastAPI, Request, Response

from tanbr.serve.web import requests, responses, views
from tanbr.serve.web.answering import answer, check_task, settled
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.latency import LatencyHistory
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.service_api import ServiceApi


def add_classify(app: FastAPI, service: ServiceApi, config: HttpConfig, latencies: LatencyHistory) -> None:
    """Add the route."""
    info = service.info
    columns = {label: column for column, label in enumerate(info.columns[: info.classes])}

    @app.post(
        "/v1/classify", tags=["answers"], response_model=responses.ClassifyResponse, response_model_exclude_none=True
    )
    async def classify(body: requests.ClassifyRequest, request: Request) -> Response:
        """Classify texts, or pairs of texts. Nobody needs to say which task they belong to."""
        _check_inputs(body.inputs, config)
        allowed = _allowed(body.labels, columns)
        texts = [item if isinstance(item, str) else (item[0], item[1]) for item in body.inputs]
        check_task(body.task, info.tasks)
        asked = service.submit(texts, task=body.task, labels=body.labels or ())
        answered = await settled(asked, receive=request.receive, seconds=config.answer_seconds)
        latencies.add_texts(len(texts))
        return answer(views.classified(answered, info, allowed))


def _check_inputs(inputs: list[str | list[str]], config: HttpConfig) -> None:
    if len(inputs) > config.inputs:
        raise Refusal(422, f"inputs must have at most {config.inputs} items (got {len(inputs)})", param="inputs")
    for i, item in enumerate(inputs):
        if len(item if isinstance(item, str) else max(item, key=len)) > config.text_chars:
            raise Refusal(422, f"inputs[{i}] must have at most {config.text_chars} characters", param=f"inputs[{i}]")


def _allowed(labels: list[str] | None, columns: dict[str, int]) -> list[int]:
    """Give the columns to choose from."""
    if labels is None:
        return list(columns.values())
    strange = next((label for label in labels if label not in columns), None)
    if strange is not None:
        raise Refusal(422, f"labels must be some of {', '.join(columns)} (got {strange[:60]!r})", param="labels")
    return sorted({columns[label] for label in labels})
