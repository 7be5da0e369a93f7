"""OpenAI's completions and chat completions of a model that writes, whole or as a stream of server-sent events."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.types import Receive

from tanbr.errors import CheckpointError, InputError
from tanbr.serve.records import Generated
from tanbr.serve.sampling import Manner
from tanbr.serve.web.bodies import ChatRequest, ChatResponse, CompletionRequest, CompletionResponse, Writable
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import LatencyHistory
from tanbr.serve.web.refusals import Refusal, refusal_of, shortened
from tanbr.serve.web.service_api import ServiceApi, awaited, settled

EVENT = {"type": "object", "properties": {"data": {"type": "string", "description": "A piece, or [DONE]."}}}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}


def add_completions(app: FastAPI, service: ServiceApi, config: HttpConfig, latencies: LatencyHistory) -> None:
    """Add the routes of a service whose model writes."""
    writing = _Writing(service, config, latencies)

    @app.post("/v1/completions", tags=["answers"], response_model=CompletionResponse, responses=STREAMED)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Write answers to each prompt."""
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        return await writing.answer(prompts, body, body.max_tokens, COMPLETION, request)

    @app.post("/v1/chat/completions", tags=["answers"], response_model=ChatResponse, responses=STREAMED)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Write the next message of a conversation, which the tokenizer's own template makes a prompt of."""
        try:
            rendering = service.chat([message.model_dump() for message in body.messages])
            prompt = await settled(rendering, receive=request.receive, seconds=config.answer_seconds)
        except InputError as error:
            raise Refusal(400, shortened(str(error)), param="messages") from None
        except CheckpointError as error:  # whoever runs the server chose the checkpoint
            raise Refusal(500, str(error)) from None
        most = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
        return await writing.answer([prompt], body, most, CHAT, request)


class _Writing:
    """What the routes have in common."""

    def __init__(self, service: ServiceApi, config: HttpConfig, latencies: LatencyHistory) -> None:
        self._service, self._config, self._latencies = service, config, latencies

    async def answer(
        self, prompts: list[str], body: Writable, max_tokens: int | None, shape: "Shape", request: Request
    ) -> Response:
        """Write an answer to each prompt, whole or as a stream."""
        manner, seconds = _manner(body), self._config.answer_seconds
        self._check(prompts, body, max_tokens, manner.n, shape)
        stream = _Stream(shape, self._service.info.model, manner, body, seconds=seconds) if body.stream else None
        on_token = None if stream is None else stream.on_token
        writing = self._service.generate(
            prompts, max_tokens=max_tokens, manner=manner, on_token=on_token, task=body.task
        )
        try:
            if stream is not None:
                await stream.begin(writing, request.receive)
            else:
                done = await settled(writing, receive=request.receive, seconds=seconds)
        except InputError as error:  # a prompt with more tokens than the model reads
            raise Refusal(400, shortened(str(error)), param=shape.param, code="context_length_exceeded") from None
        self._latencies.add_texts(len(prompts) * manner.n)
        if stream is not None:
            return StreamingResponse(stream.events(), media_type="text/event-stream")
        choices = [
            {"index": i, "finish_reason": reason, "logprobs": None, "request_id": request_id} | shape.whole(text)
            for i, (text, reason, request_id) in enumerate(
                zip(done.texts, done.finish_reasons, done.request_ids, strict=True)
            )
        ]
        head = _head(f"{shape.prefix}-{done.request_ids[0]}", shape.kind, self._service.info.model)
        more = {"choices": choices, "usage": _usage(done, manner), "merge_version": done.merge_version}
        return Response(to_json(head | more), media_type="application/json")

    def _check(self, prompts: list[str], body: Writable, max_tokens: int | None, n: int, shape: "Shape") -> None:
        config, info = self._config, self._service.info
        if body.model != info.model:
            raise Refusal(404, f"the model here is {info.model!r}", param="model", code="model_not_found")
        if len(prompts) > config.inputs:
            raise Refusal(422, f"{shape.param} must have at most {config.inputs} texts", param=shape.param)
        if len(prompts) * n > config.inputs:
            most = config.inputs // len(prompts)
            raise Refusal(422, f"n must be at most {most}, for {config.inputs} answers (got {n})", param="n")
        if any(len(prompt) > config.text_chars for prompt in prompts):
            says = f"{shape.param}: a prompt must have at most {config.text_chars} characters"
            raise Refusal(422, says, param=shape.param)
        if max_tokens is not None and max_tokens > info.max_tokens:
            says = f"max_tokens must be at most {info.max_tokens} (got {max_tokens})"
            raise Refusal(400, says, param="max_tokens")


def _manner(body: Writable) -> Manner:
    """Read how answers are to be written."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    top_p = 1.0 if body.top_p is None else body.top_p
    return Manner(body.temperature or 0.0, top_p, body.seed, n=body.n or 1, stop=tuple(stop))


@dataclass(frozen=True)
class Shape:
    """How OpenAI's clients want an answer."""

    param: str  # what holds the prompts
    prefix: str  # of the answer's id
    kind: str  # of a whole answer …
    piece_kind: str  # … and of a piece of one

    def whole(self, text: str) -> dict[str, Any]:
        """Say the text of a choice."""
        return {"message": {"role": "assistant", "content": text}} if self is CHAT else {"text": text}

    def piece(self, text: str, *, first: bool) -> dict[str, Any]:
        """Say a piece of it; the role comes once, because clients join pieces name by name."""
        role = {"role": "assistant"} if first else {}
        return {"delta": role | {"content": text}} if self is CHAT else {"text": text}

    def last(self) -> dict[str, Any]:
        """Say that no more comes."""
        return {"delta": {}} if self is CHAT else {"text": ""}


COMPLETION = Shape("prompt", "cmpl", "text_completion", "text_completion")
CHAT = Shape("messages", "chatcmpl", "chat.completion", "chat.completion.chunk")


class _Stream:
    """One answer in pieces, from the model's thread to the client."""

    def __init__(self, shape: Shape, model: str, manner: Manner, body: Writable, *, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        self._first: tuple[int, str] | None = None
        self._head = _head(f"{shape.prefix}-{uuid.uuid4().hex}", shape.piece_kind, model)
        self._shape, self._manner, self._seconds = shape, manner, seconds
        self._usage = body.stream_options is not None and body.stream_options.include_usage
        self._future: Future[Generated]

    def on_token(self, prompt: int, text: str) -> None:
        """Take a piece of the answer to a prompt."""
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, (prompt, text))

    async def begin(self, future: "Future[Generated]", receive: Receive) -> None:
        """Wait for the first piece: what goes wrong before it, a full queue say, still has a status of its own."""
        self._future = future
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._pieces.put_nowait, None))
        try:
            piece = asyncio.ensure_future(self._pieces.get())
            self._first = await awaited(piece, receive=receive, seconds=self._seconds)
        except (Refusal, asyncio.CancelledError):
            future.cancel()
            raise
        if self._first is None:
            future.result()

    async def events(self) -> AsyncIterator[bytes]:
        """Give each piece as an event; what goes wrong midway is an event, too."""
        begun: set[int] = set()  # answers of which there was a piece
        try:
            piece = self._first
            while piece is not None:
                index, text = piece
                said = self._shape.piece(text, first=index not in begun)
                begun.add(index)
                yield self._event([{"index": index, "finish_reason": None, "logprobs": None} | said])
                piece = await asyncio.wait_for(self._pieces.get(), self._seconds)
            done = self._future.result()
            versions = done.merge_versions or (done.merge_version,) * len(done.request_ids)
            for i, (reason, request_id) in enumerate(zip(done.finish_reasons, done.request_ids, strict=True)):
                choice = {"index": i, "finish_reason": reason, "logprobs": None, "request_id": request_id}
                said = self._shape.last() if i in begun else self._shape.piece("", first=True)
                yield self._event([choice | said], merge_version=versions[i])
            if self._usage:
                yield self._event([], usage=_usage(done, self._manner))
        except TimeoutError:
            late = Refusal(504, f"there was no more text within {self._seconds:g} seconds")
            yield b"data: " + late.body() + b"\n\n"
        except Exception as error:  # the status is sent already: all that is left is to say it
            yield b"data: " + refusal_of(error).body() + b"\n\n"
        finally:
            self._future.cancel()  # of no effect once it is done; otherwise the client has left
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        usage = {"usage": None} if self._usage else {}
        return b"data: " + to_json(self._head | {"choices": choices} | usage | more) + b"\n\n"


def _head(name: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def _usage(done: Generated, manner: Manner) -> dict[str, int]:
    """Count tokens; a prompt counts once, however many answers it has."""
    read, written = sum(done.prompt_tokens[:: manner.n]), sum(done.completion_tokens)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
