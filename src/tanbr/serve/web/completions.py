"""OpenAI's completions for a model that writes, whole or as a stream of server-sent events."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from tanbr.serve.records import Generated
from tanbr.serve.web import logs
from tanbr.serve.web.answering import answer, refusal_of, settled
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.shapes import CompletionRequest, CompletionResponse

if TYPE_CHECKING:  # torch comes with it, and an address that is taken should be found out without
    from tanbr.serve.service import Service

EVENT = {"type": "object", "properties": {"data": {"type": "string", "description": "A piece, or [DONE]."}}}


def add_completions(app: FastAPI, service: "Service", config: HttpConfig) -> None:
    """Add the route of a service whose model writes."""
    name = service.info.model

    @app.post(
        "/v1/completions",
        tags=["answers"],
        response_model=CompletionResponse,
        responses={200: {"content": {"text/event-stream": {"schema": EVENT}}}},
    )
    async def complete(body: CompletionRequest) -> Response:
        """Write an answer to each prompt."""
        if body.model != name:
            raise Refusal(404, f"the model here is {name!r}", param="model", code="model_not_found")
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        if len(prompts) > config.inputs:
            raise Refusal(422, f"prompt must have at most {config.inputs} texts", param="prompt")
        if any(len(prompt) > config.text_chars for prompt in prompts):
            raise Refusal(422, f"a prompt must have at most {config.text_chars} characters", param="prompt")
        tokens = None if body.max_tokens is None else min(body.max_tokens, service.info.max_tokens)
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            stream = _Stream(service, prompts, tokens=tokens, model=name, usage=usage, seconds=config.answer_seconds)
            return StreamingResponse(stream.events(), media_type="text/event-stream")
        done = await settled(service.generate(prompts, max_tokens=tokens), seconds=config.answer_seconds)
        choices = [
            {"index": i, "text": text, "finish_reason": reason, "logprobs": None, "request_id": request}
            for i, (text, reason, request) in enumerate(
                zip(done.texts, done.finish_reasons, done.request_ids, strict=True)
            )
        ]
        head = _head(f"cmpl-{done.request_ids[0]}", name)
        return answer(head | {"choices": choices, "usage": _usage(done), "merge_version": done.merge_version})


class _Stream:
    """One answer in pieces. The model has begun when this exists, so that a full queue is a 429 and not a stream."""

    def __init__(
        self, service: "Service", prompts: list[str], *, tokens: int | None, model: str, usage: bool, seconds: float
    ) -> None:
        loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        self._head, self._usage, self._seconds = _head(f"cmpl-{uuid.uuid4().hex}", model), usage, seconds

        def on_token(prompt: int, text: str) -> None:
            loop.call_soon_threadsafe(self._pieces.put_nowait, (prompt, text))

        self._future: Future[Generated] = service.generate(prompts, max_tokens=tokens, on_token=on_token)
        self._future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._pieces.put_nowait, None))

    async def events(self) -> AsyncIterator[bytes]:
        """Give each piece as an event; what goes wrong midway is an event, too."""
        try:
            while (piece := await asyncio.wait_for(self._pieces.get(), self._seconds)) is not None:
                yield self._event([{"index": piece[0], "text": piece[1], "finish_reason": None, "logprobs": None}])
            done = self._future.result()
            for i, (reason, request) in enumerate(zip(done.finish_reasons, done.request_ids, strict=True)):
                choice = {"index": i, "text": "", "finish_reason": reason, "logprobs": None, "request_id": request}
                yield self._event([choice], merge_version=done.merge_version)
            if self._usage:
                yield self._event([], usage=_usage(done))
        except TimeoutError:
            late = Refusal(504, f"there was no more text within {self._seconds:g} seconds")
            yield b"data: " + late.body() + b"\n\n"
        except Exception as error:  # the status is sent already: all that is left is to say it
            logs.logger.exception("stream")
            yield b"data: " + refusal_of(error).body() + b"\n\n"
        finally:
            self._future.cancel()  # of no effect once it is done; otherwise the client has left
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + to_json(self._head | {"choices": choices} | more) + b"\n\n"


def _head(name: str, model: str) -> dict[str, Any]:
    return {"id": name, "object": "text_completion", "created": int(time.time()), "model": model}


def _usage(done: Generated) -> dict[str, int]:
    read, written = sum(done.prompt_tokens), sum(done.completion_tokens)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
