"""OpenAI's completions and chat completions of a model that writes, whole or as a stream of server-sent events."""

import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field, Tag, model_validator
from pydantic_core import PydanticCustomError, from_json, to_json
from starlette.types import Receive

from tanbr.errors import CheckpointError, InputError
from tanbr.serve.records import Generated
from tanbr.serve.sampling import WritingOptions
from tanbr.serve.web.bodies import Sent, one_of, text_or_list
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import LatencyHistory
from tanbr.serve.web.refusals import Refusal, allows, refusal_of, shortened
from tanbr.serve.web.service_api import Pieces, ServiceApi, settled

NOT_DONE: dict[str, list[Any]] = {  # what OpenAI's clients may ask for and is not done here → what changes nothing
    "audio": [], "best_of": [1], "echo": [False], "frequency_penalty": [0], "function_call": ["none", "auto"],
    "functions": [[]], "logit_bias": [{}], "logprobs": [False], "modalities": [["text"]], "moderation": [],
    "parallel_tool_calls": [True, False], "prediction": [], "presence_penalty": [0], "reasoning_effort": [],
    "response_format": [{"type": "text"}], "service_tier": ["auto", "default"], "store": [False], "suffix": [""],
    "tool_choice": ["none", "auto"], "tools": [[]], "top_logprobs": [0], "verbosity": [], "web_search_options": [],
}  # fmt: skip
NOT_KEPT = {  # what changes no answer, whatever it is
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "user",
}  # fmt: skip
EVENT = {"type": "object", "properties": {"data": {"type": "string", "description": "A piece, or [DONE]."}}}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}

HOTTEST, MOST_STOPS = 2.0, 4  # temperature, and strings that may end an answer, as OpenAI's API has them
TEXT_OR_TEXTS = text_or_list("must be a text, or texts in a list")
TEXT_OR_PARTS = text_or_list("must be a text, or a list of text parts")
Stop = Annotated[str, Field(min_length=1, max_length=256)]  # a stream may have to hold back as many characters
Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)]


class StreamOptions(Sent):
    """What a stream holds beside the text."""

    include_usage: bool = False
    """Whether a last piece counts the tokens."""
    include_obfuscation: bool = False
    """No piece is padded, whatever is said here."""


class TextPart(Sent):
    """A part of what somebody said: this server reads text, and neither pictures nor sound."""

    type: Literal["text"]
    text: str


Parts = Annotated[list[TextPart], Field(fail_fast=True)]


class Function(Sent):
    """What the model asked to be called."""

    name: str
    arguments: str
    """As JSON."""


class ToolCall(Sent):
    """What the model asked for in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(Sent):
    """What somebody said, as the model's chat template gets it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Annotated[str, Tag(":text")] | Annotated[Parts, Tag(":list")], TEXT_OR_PARTS] | None = None
    """A text, or parts that are joined by line breaks."""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Leave out what OpenAI's answers name without a value (`refusal`, `audio`, …): clients send answers back."""
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("content", "must have content, a text or a list of text parts")
        return self

    def plain(self) -> dict[str, Any]:
        """Give what templates expect: one text, and arguments as an object."""
        said = self.model_dump(exclude_none=True)
        if not isinstance(self.content, str):
            said["content"] = "\n".join(part.text for part in self.content or ())
        for call in said.get("tool_calls", ()):
            with suppress(ValueError):  # the template gets the text, then; nesting is limited, too
                call["function"]["arguments"] = from_json(call["function"]["arguments"])
        return said


class Writable(Sent):
    """What OpenAI's clients say of any answer; the first four have limits that the running server knows."""

    model: str
    max_tokens: int | None = None
    n: int | None = None
    task: str | None = None
    stream: bool | None = None
    """Whether to send each piece of text as it is made, as server-sent events."""
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=HOTTEST)] | None = None
    """What the logits are divided by before a word is drawn; 0, or not given: the most probable word each time."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Draw from the smallest set of words with so much of the probability; no difference at temperature 0."""
    stop: Annotated[Annotated[Stop, Tag(":text")] | Annotated[Stops, Tag(":list")], TEXT_OR_TEXTS] | None = None
    """An answer ends before the first of these strings, which is no part of it."""
    seed: int | None = None
    """The same seed, prompt and merge version give the same answer; no difference at temperature 0."""

    @model_validator(mode="before")
    @classmethod
    def _changes_nothing(cls, value: Any) -> Any:
        """Refuse what is not done here, unless it changes nothing; then leave it out, and what is not kept."""
        if not isinstance(value, dict):
            return value
        for name in NOT_DONE.keys() & value.keys():
            said, neutral = value[name], [None, *NOT_DONE[name]]
            if not any(said == one and isinstance(said, bool) == isinstance(one, bool) for one in neutral):
                says = "this server does not support the parameter {name}; leave it out of the request"
                raise PydanticCustomError("not_done", says, {"name": name})
        return {name: said for name, said in value.items() if name not in NOT_DONE and name not in NOT_KEPT}

    def options(self) -> WritingOptions:
        """Say how answers are to be written."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        top_p = 1.0 if self.top_p is None else self.top_p
        return WritingOptions(self.temperature or 0.0, top_p, self.seed, n=self.n or 1, stop=tuple(stop))


def add_completions(app: FastAPI, service: ServiceApi, config: HttpConfig, latencies: LatencyHistory) -> None:
    """Add the routes of a service whose model writes."""
    info = service.info
    Text = Annotated[str, Field(min_length=1, max_length=config.longest)]
    Texts = Annotated[list[Text], Field(min_length=1, max_length=config.inputs, fail_fast=True)]
    Tokens = Annotated[int, Field(ge=1, json_schema_extra={"maximum": info.max_tokens})]  # the service says why

    class Limited(Writable):
        model: Annotated[str, Field(json_schema_extra={"enum": [info.model]})]
        """The id that /v1/models gives."""
        max_tokens: Tokens | None = None
        """Most tokens to write."""
        n: Annotated[int, Field(ge=1, le=config.inputs)] | None = None
        """Answers to each prompt; at temperature 0 all the same."""
        task: Annotated[str, one_of(info.tasks)] | None = None
        """The task that the prompts belong to, if the client knows; an extension of ours."""

    class CompletionRequest(Limited):
        """Prompts to go on from, or to answer."""

        model_config = ConfigDict(json_schema_extra={"examples": [{"model": info.model, "prompt": "translate: hello"}]})
        prompt: Annotated[Annotated[Text, Tag(":text")] | Annotated[Texts, Tag(":list")], TEXT_OR_TEXTS]

    class ChatRequest(Limited):
        """A conversation to go on with."""

        model_config = ConfigDict(
            json_schema_extra={"examples": [{"model": info.model, "messages": [{"role": "user", "content": "hello"}]}]}
        )
        messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
        max_completion_tokens: Tokens | None = None
        """The newer name of max_tokens."""

    async def answer(prompts: list[str], body: Limited, most: int | None, shape: Shape, request: Request) -> Response:
        """Write answers to each prompt of at most so many tokens, whole or as a stream."""
        options, seconds = body.options(), config.answer_seconds
        if body.model != info.model:
            raise Refusal.model(info.model)
        if len(prompts) * options.n > config.inputs:
            says = f"n must be at most {config.inputs // len(prompts)}, for {config.inputs} answers (got {options.n})"
            says += allows("inputs")
            raise Refusal(422, says, param="n")
        stream = _Stream(shape, body, options, seconds=seconds) if body.stream else None
        on_token = None if stream is None else stream.on_token
        try:
            writing = service.generate(prompts, max_tokens=most, options=options, on_token=on_token, task=body.task)
        except InputError as error:  # more tokens than can be written
            raise Refusal(422, str(error), param="max_tokens") from None
        try:
            if stream is not None:
                await stream.begin(writing, request.receive)
            else:
                done = await settled(writing, receive=request.receive, seconds=seconds)
        except InputError as error:  # a prompt with more tokens than the model reads
            raise Refusal(400, shortened(str(error)), param=shape.param, code="context_length_exceeded") from None
        latencies.add_texts(len(prompts) * options.n)
        if stream is not None:
            return StreamingResponse(stream.events(), media_type="text/event-stream")
        return Response(shape.answer(done, info.model, options), media_type="application/json")

    @app.post("/v1/completions", tags=["answers"], responses=STREAMED)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Write answers to each prompt: OpenAI's completion, with a request_id in each choice, and a merge_version."""
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        return await answer(prompts, body, body.max_tokens, COMPLETION, request)

    @app.post("/v1/chat/completions", tags=["answers"], responses=STREAMED)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Write the next message of a conversation, which the tokenizer's own template makes a prompt of."""
        try:
            rendering = service.chat([message.plain() for message in body.messages])
            prompt = await settled(rendering, receive=request.receive, seconds=config.answer_seconds)
        except InputError as error:
            raise Refusal(400, shortened(str(error)), param="messages") from None
        except CheckpointError as error:  # the operator chose the checkpoint
            raise Refusal(500, str(error)) from None
        if len(prompt) > config.longest:
            says = f"messages must make a prompt of at most {config.longest} characters"
            raise Refusal(422, says + allows("text_chars"), param="messages")
        most = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
        return await answer([prompt], body, most, CHAT, request)


@dataclass(frozen=True)
class Shape:
    """How OpenAI's clients want an answer."""

    param: str  # what holds the prompts
    prefix: str  # of the answer's id
    kind: str  # of a whole answer …
    piece_kind: str  # … and of a piece of one

    def head(self, name: str, kind: str, model: str) -> dict[str, Any]:
        """Begin an answer, or a piece of one."""
        return {"id": f"{self.prefix}-{name}", "object": kind, "created": int(time.time()), "model": model}

    def whole(self, text: str) -> dict[str, Any]:
        """Say the text of a choice."""
        return {"message": {"role": "assistant", "content": text}} if self is CHAT else {"text": text}

    def answer(self, done: Generated, model: str, options: WritingOptions) -> bytes:
        """Write a whole answer as JSON."""
        choices = [
            _choice(i, self.whole(text), finish_reason=reason, request_id=request_id)
            for i, (text, reason, request_id) in enumerate(
                zip(done.texts, done.finish_reasons, done.request_ids, strict=True)
            )
        ]
        said = {"choices": choices, "usage": _usage(done, options), "merge_version": done.merge_version}
        return to_json(self.head(done.request_ids[0], self.kind, model) | said)

    def piece(self, text: str, *, first: bool) -> dict[str, Any]:
        """Say a piece of it, none at the end; the role comes once, because clients join pieces name by name."""
        role = {"role": "assistant"} if first else {}
        content = {"content": text} if text or first else {}
        return {"delta": role | content} if self is CHAT else {"text": text}


COMPLETION = Shape("prompt", "cmpl", "text_completion", "text_completion")
CHAT = Shape("messages", "chatcmpl", "chat.completion", "chat.completion.chunk")


class _Stream:
    """One answer in pieces, from the model's thread to the client."""

    def __init__(self, shape: Shape, body: Writable, options: WritingOptions, *, seconds: float) -> None:
        self._pieces: Pieces[tuple[int, str]] = Pieces(seconds=seconds)
        self._head = shape.head(uuid.uuid4().hex, shape.piece_kind, body.model)
        self._shape, self._options, self._seconds = shape, options, seconds
        self._usage = body.stream_options is not None and body.stream_options.include_usage
        self._future: Future[Generated]

    def on_token(self, prompt: int, text: str) -> None:
        """Take a piece of the answer to a prompt."""
        self._pieces.put((prompt, text))

    async def begin(self, future: "Future[Generated]", receive: Receive) -> None:
        """Wait for the first piece."""
        self._future = future
        await self._pieces.begin(future, receive)

    async def events(self) -> AsyncIterator[bytes]:
        """Give each piece as an event; what goes wrong midway is an event, too."""
        begun: set[int] = set()  # answers of which there was a piece
        try:
            async for index, text in self._pieces:
                yield self._event([_choice(index, self._shape.piece(text, first=index not in begun))])
                begun.add(index)
            done = self._future.result()
            versions = done.merge_versions or (done.merge_version,) * len(done.request_ids)
            for i, (reason, request_id) in enumerate(zip(done.finish_reasons, done.request_ids, strict=True)):
                said = self._shape.piece("", first=i not in begun)
                last = _choice(i, said, finish_reason=reason, request_id=request_id)
                yield self._event([last], merge_version=versions[i])
            if self._usage:
                yield self._event([], usage=_usage(done, self._options))
        except TimeoutError:
            yield Refusal(504, f"there was no more text within {self._seconds:g} seconds").event()
        except Exception as error:  # the status is sent already: all that is left is to say it
            yield refusal_of(error).event()
        finally:
            self._future.cancel()  # of no effect once it is done; otherwise the client has left
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        usage = {"usage": None} if self._usage else {}
        return b"data: " + to_json(self._head | {"choices": choices} | usage | more) + b"\n\n"


def _choice(index: int, said: dict[str, Any], *, finish_reason: str | None = None, **more: str) -> dict[str, Any]:
    return {"index": index, "finish_reason": finish_reason, "logprobs": None, **more, **said}


def _usage(done: Generated, options: WritingOptions) -> dict[str, int]:
    """Count tokens; a prompt counts once, however many answers it has."""
    read, written = sum(done.prompt_tokens[:: options.n]), sum(done.completion_tokens)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
