"""The route of a sentence encoder: OpenAI's embeddings."""

import base64
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import ConfigDict, Field, Tag

from tanbr.serve.web.bodies import Sent, one_of, text_or_list
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import LatencyHistory
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.service_api import ServiceApi, settled


def add_embeddings(app: FastAPI, service: ServiceApi, config: HttpConfig, latencies: LatencyHistory) -> None:
    """Add the route."""
    info = service.info
    Text = Annotated[str, Field(min_length=1, max_length=config.longest)]
    Texts = Annotated[list[Text], Field(min_length=1, max_length=config.inputs, fail_fast=True)]

    class EmbeddingRequest(Sent):
        """Texts to embed."""

        model_config = ConfigDict(
            json_schema_extra={"examples": [{"model": info.model, "input": "the plot is clever"}]}
        )
        model: Annotated[str, Field(json_schema_extra={"enum": [info.model]})]
        """The id that /v1/models gives."""
        input: Annotated[
            Annotated[Text, Tag(":text")] | Annotated[Texts, Tag(":list")],
            text_or_list("must be a text, or texts in a list"),
        ]
        encoding_format: Literal["float", "base64"] = "float"
        """base64: the numbers as float32, lowest byte first."""
        dimensions: Literal[len(info.columns)] | None = None  # type: ignore[valid-type]
        """How many numbers a vector has; the model's own count, and no other."""
        user: str | None = None
        """Not used."""
        task: Annotated[str, one_of(info.tasks)] | None = None
        """The task that the texts belong to, if the client knows; an extension of ours."""

    @app.post("/v1/embeddings", tags=["answers"])
    async def embed(body: EmbeddingRequest, request: Request) -> dict[str, Any]:
        """Embed texts: OpenAI's embeddings, with a request_id in each, and a merge_version."""
        if body.model != info.model:
            raise Refusal.model(info.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        asked = service.submit(texts, task=body.task)
        done = await settled(asked, receive=request.receive, seconds=config.answer_seconds)
        latencies.add_texts(len(texts))
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
