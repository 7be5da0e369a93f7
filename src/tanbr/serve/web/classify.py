"""The route of a model that classifies."""

from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json
from scipy.special import expit, softmax

from tanbr.serve.records import Answered, ServiceInfo
from tanbr.serve.web.bodies import ClassifyRequest, ClassifyResponse
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import LatencyHistory
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.service_api import ServiceApi, settled

DIGITS = 6  # of probabilities and grades: what float32 logits carry


def add_classify(app: FastAPI, service: ServiceApi, config: HttpConfig, latencies: LatencyHistory) -> None:
    """Add the route."""
    info = service.info
    columns = {label: column for column, label in enumerate(info.labels)}

    @app.post("/v1/classify", tags=["answers"], response_model=ClassifyResponse)
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        """Classify texts, or pairs of texts. Nobody needs to say which task they belong to."""
        _check_inputs(body.inputs, config)
        allowed = _allowed(body.labels, columns)
        texts = [item if isinstance(item, str) else (item[0], item[1]) for item in body.inputs]
        asked = service.submit(texts, task=body.task, labels=body.labels or ())
        answered = await settled(asked, receive=request.receive, seconds=config.answer_seconds)
        latencies.add_texts(len(texts))
        outputs = classified(answered, info, allowed)
        return Response(to_json(outputs, inf_nan_mode="null"), media_type="application/json")


def classified(answered: Answered, info: ServiceInfo, allowed: list[int]) -> dict[str, Any]:
    """Show logits (n, columns) as probabilities of the labels in the columns `allowed`, and grades on their scales."""
    chances = softmax(answered.logits[:, allowed], axis=1)
    best = chances.argmax(axis=1).tolist()
    labels = [info.columns[column] for column in allowed]
    cuts = answered.cut or [0] * len(best)
    outputs: list[dict[str, Any]] = [
        {
            "request_id": name,
            "label": labels[winner],
            "score": row[winner],
            "scores": dict(zip(labels, row, strict=True)),
            "tokens_cut": cut,
        }
        for name, winner, row, cut in zip(answered.request_ids, best, chances.round(DIGITS).tolist(), cuts, strict=True)
    ]
    for column, task in enumerate(info.columns[info.classes :], start=info.classes):
        low, high = info.scales[task]
        grades = low + (high - low) * expit(answered.logits[:, column])
        for output, grade in zip(outputs, grades.round(DIGITS).tolist(), strict=True):
            output.setdefault("grades", {})[task] = grade
    if answered.merge_versions:
        for output, version in zip(outputs, answered.merge_versions, strict=True):
            output["merge_version"] = version
    return {"outputs": outputs, "merge_version": answered.merge_version}


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
