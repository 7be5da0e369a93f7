"""The routes of models that read: those that classify, and sentence encoders."""

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import Discriminator, Field, Tag
from scipy.special import expit, softmax

from tanbr.serve.records import Answered, ServiceInfo, Shown
from tanbr.serve.web.bodies import Sent, listed, one_of
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.waiting import settled

if TYPE_CHECKING:
    from tanbr.serve.service import Service

DIGITS = 6  # of probabilities and grades: what float32 logits carry


@dataclass
class Classified(Shown):
    """The answer to one input."""

    request_id: str
    """What feedback on this answer must name."""
    label: str
    """The most probable of the labels."""
    score: float
    """Its probability."""
    scores: dict[str, float]
    """Probability of each label; they sum to 1 over the labels asked for."""
    tokens_cut: int
    """How many tokens of the input were left out because it is longer than the model reads."""
    merge_version: int
    """What answered it: where several models answer side by side, they may differ."""
    grades: dict[str, float]
    """For every graded task of the model, the grade that this input would get, on the task's scale."""


@dataclass
class ClassifyResponse(Shown):
    """Answers in the order of the inputs."""

    outputs: list[Classified]
    merge_version: int
    """What answered the first."""


def add_classify(app: FastAPI, service: "Service", config: HttpConfig) -> None:
    """Add the route of a classifier."""
    info = service.info
    columns = {label: column for column, label in enumerate(info.labels)}
    Text = Annotated[str, Field(min_length=1, max_length=config.longest)]
    Pair = Annotated[list[Text], Field(min_length=2, max_length=2, fail_fast=True)]
    Input = Annotated[
        Annotated[Text, Tag(":text")] | Annotated[Pair, Tag(":pair")],
        Discriminator(
            lambda item: ":text" if isinstance(item, str) else ":pair" if isinstance(item, list) else None,
            custom_error_type="input",
            custom_error_message="must be a text, or a pair of texts in a list",
        ),
    ]

    class ClassifyRequest(
        Sent,
        json_schema_extra={
            "examples": [{"inputs": ["the plot is clever", ["a question", "a passage that may answer it"]]}]
        },
    ):
        """Texts, or pairs of texts, to classify."""

        inputs: Annotated[list[Input], Field(min_length=1, max_length=config.inputs, fail_fast=True)]
        """Each a text, or a pair of texts."""
        labels: Annotated[list[Annotated[str, one_of(info.labels)]], Field(min_length=1, fail_fast=True)] | None = None
        """The only labels to choose from; all if not given."""
        task: Annotated[str, one_of(info.tasks)] | None = None
        """The task that the inputs belong to, if the client knows; nobody has to say."""

    @app.post("/v1/classify", tags=["answers"])
    async def classify(body: ClassifyRequest, request: Request) -> ClassifyResponse:
        """Classify texts, or pairs of texts. Nobody needs to say which task they belong to."""
        texts = [item if isinstance(item, str) else (item[0], item[1]) for item in body.inputs]
        asked = service.submit(texts, task=body.task, labels=body.labels or ())
        answered = await settled(asked, request, seconds=config.answer_seconds)
        request.scope["tanbr.texts"] = len(texts)
        return classified(answered, info, sorted({columns[label] for label in body.labels or columns}))


def classified(answered: Answered, info: ServiceInfo, allowed: list[int]) -> ClassifyResponse:
    """Show logits (n, columns) as probabilities of the labels in the columns `allowed`, and grades on their scales."""
    chances = softmax(answered.logits[:, allowed], axis=1)
    best = chances.argmax(axis=1).tolist()
    labels = [info.columns[column] for column in allowed]
    cuts = answered.cut or (0,) * len(best)
    versions = answered.merge_versions or (answered.merge_version,) * len(best)
    rows = zip(answered.request_ids, best, chances.round(DIGITS).tolist(), cuts, versions, strict=True)
    outputs = [
        Classified(name, labels[winner], row[winner], dict(zip(labels, row, strict=True)), cut, version, grades={})
        for name, winner, row, cut, version in rows
    ]
    for column, task in enumerate(info.columns[info.classes :], start=info.classes):
        low, high = info.scales[task]
        grades = low + (high - low) * expit(answered.logits[:, column])
        for output, grade in zip(outputs, grades.round(DIGITS).tolist(), strict=True):
            output.grades[task] = grade
    return ClassifyResponse(outputs, answered.merge_version)


def add_embeddings(app: FastAPI, service: "Service", config: HttpConfig) -> None:
    """Add the route of a sentence encoder: OpenAI's embeddings."""
    info = service.info
    Text = Annotated[str, Field(min_length=1, max_length=config.longest)]
    Texts = Annotated[list[Text], Field(min_length=1, max_length=config.inputs, fail_fast=True)]

    class EmbeddingRequest(
        Sent, json_schema_extra={"examples": [{"model": info.model, "input": "the plot is clever"}]}
    ):
        """Texts to embed."""

        model: Annotated[str, Field(json_schema_extra={"enum": [info.model]})]
        """The id that /v1/models gives."""
        input: Annotated[Texts, listed(Text | Texts)]
        encoding_format: Literal["float", "base64"] = "float"
        """base64: the numbers as float32, lowest byte first."""
        user: str | None = None
        """Not used."""
        task: Annotated[str, one_of(info.tasks)] | None = None
        """The task that the texts belong to, if the client knows; an extension of ours."""

    @app.post("/v1/embeddings", tags=["answers"])
    async def embed(body: EmbeddingRequest, request: Request) -> dict[str, Any]:
        """Embed texts: OpenAI's embeddings, with a request_id in each, and a merge_version."""
        if body.model != info.model:
            raise Refusal.model(info.model)
        asked = service.submit(body.input, task=body.task)
        done = await settled(asked, request, seconds=config.answer_seconds)
        request.scope["tanbr.texts"] = len(body.input)
        vectors = done.logits.astype("<f4")
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": row.tolist() if body.encoding_format == "float" else base64.b64encode(row).decode(),
                "request_id": name,
            }
            for i, (name, row) in enumerate(zip(done.request_ids, vectors, strict=True))
        ]
        usage = {"prompt_tokens": sum(done.tokens), "total_tokens": sum(done.tokens)}
        said = {"object": "list", "data": data, "model": info.model, "usage": usage}
        return said | {"merge_version": done.merge_version}
