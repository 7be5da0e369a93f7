"""OpenAI's completions and chat completions of a model that writes, whole or as a stream of server-sent events."""

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import Field, Tag, model_validator
from pydantic_core import PydanticCustomError, from_json, to_json

from tanbr.errors import CheckpointError, InputError
from tanbr.serve.records import Generated
from tanbr.serve.sampling import WritingOptions
from tanbr.serve.web.bodies import Sent, one_of, text_or_list
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.metrics import LatencyHistory
from tanbr.serve.web.refusals import Refusal, allows, shortened
from tanbr.serve.web.service_api import ServiceApi, Stream, settled

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


class ChatMessage(Sent):
    """What somebody said, as the model's chat template gets it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Annotated[str, Tag(":text")] | Annotated[Parts, Tag(":list")], TEXT_OR_PARTS] | None = None
    """A text, or parts that are joined by line breaks."""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    """What the model asked for in an earlier answer; the template reads it."""

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
            with suppress(ValueError, KeyError, TypeError):  # the template gets it as it is; nesting is limited, too
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

    class CompletionRequest(
        Limited, json_schema_extra={"examples": [{"model": info.model, "prompt": "translate: hello"}]}
    ):
        """Prompts to go on from, or to answer."""

        prompt: Annotated[Annotated[Text, Tag(":text")] | Annotated[Texts, Tag(":list")], TEXT_OR_TEXTS]

    class ChatRequest(
        Limited,
        json_schema_extra={"examples": [{"model": info.model, "messages": [{"role": "user", "content": "hello"}]}]},
    ):
        """A conversation to go on with."""

        messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
        max_completion_tokens: Tokens | None = None
        """The newer name of max_tokens."""

    async def answer(prompts: list[str], body: Limited, most: int | None, request: Request, *, chat: bool) -> Response:
        """Write answers to each prompt of at most so many tokens, whole or as a stream."""
        options, seconds = body.options(), config.answer_seconds
        if body.model != info.model:
            raise Refusal.model(info.model)
        if len(prompts) * options.n > config.inputs:
            says = f"n must be at most {config.inputs // len(prompts)}, for {config.inputs} answers (got {options.n})"
            says += allows("inputs")
            raise Refusal(422, says, param="n")
        stream: Stream[tuple[int, str]] | None = Stream(request.receive, seconds=seconds) if body.stream else None
        on_token = None if stream is None else lambda prompt, text: stream.put((prompt, text))
        try:
            writing = service.generate(prompts, max_tokens=most, options=options, on_token=on_token, task=body.task)
        except InputError as error:  # more tokens than can be written
            raise Refusal(422, str(error), param="max_tokens") from None
        answered: Response
        try:
            if stream is not None:
                pieces = Pieces(body, chat=chat)
                answered = await stream.response(writing, shown=pieces.shown, rest=pieces.rest)
            else:
                done = await settled(writing, receive=request.receive, seconds=seconds)
                answered = Response(whole(done, body, chat=chat), media_type="application/json")
        except InputError as error:  # a prompt with more tokens than the model reads
            param = "messages" if chat else "prompt"
            raise Refusal(400, shortened(str(error)), param=param, code="context_length_exceeded") from None
        latencies.add_texts(len(prompts) * options.n)
        return answered

    @app.post("/v1/completions", tags=["answers"], responses=STREAMED)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Write answers to each prompt: OpenAI's completion, with a request_id in each choice, and a merge_version."""
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        return await answer(prompts, body, body.max_tokens, request, chat=False)

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
        return await answer([prompt], body, most, request, chat=True)


def whole(done: Generated, body: Writable, *, chat: bool) -> bytes:
    """Write a whole answer as JSON."""
    kind = "chat.completion" if chat else "text_completion"
    choices = []
    for i, (text, reason, request_id) in enumerate(zip(done.texts, done.finish_reasons, done.request_ids, strict=True)):
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choices.append(_choice(i, said, finish_reason=reason, request_id=request_id))
    rest = {"choices": choices, "usage": _usage(done, body.n or 1), "merge_version": done.merge_version}
    return to_json(_head(done.request_ids[0], kind, body.model, chat=chat) | rest)


class Pieces:
    """The pieces of an answer as OpenAI's clients join them: name by name, so that the role comes once."""

    def __init__(self, body: Writable, *, chat: bool) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._head, self._chat, self._n = _head(uuid.uuid4().hex, kind, body.model, chat=chat), chat, body.n or 1
        self._usage = body.stream_options is not None and body.stream_options.include_usage
        self._begun: set[int] = set()  # answers of which there was a piece

    def shown(self, piece: tuple[int, str]) -> dict[str, Any]:
        """Show a text that was added to an answer."""
        index, text = piece
        return self._event([_choice(index, self._said(index, text))])

    def rest(self, done: Generated) -> Iterator[dict[str, Any]]:
        """Say how each answer ended, and count the tokens if that was asked for."""
        versions = done.merge_versions or (done.merge_version,) * len(done.request_ids)
        for i, (reason, request_id) in enumerate(zip(done.finish_reasons, done.request_ids, strict=True)):
            last = _choice(i, self._said(i, ""), finish_reason=reason, request_id=request_id)
            yield self._event([last], merge_version=versions[i])
        if self._usage:
            yield self._event([], usage=_usage(done, self._n))

    def _said(self, index: int, text: str) -> dict[str, Any]:
        first = index not in self._begun
        self._begun.add(index)
        role = {"role": "assistant"} if first else {}
        return {"delta": role | ({"content": text} if text or first else {})} if self._chat else {"text": text}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return self._head | {"choices": choices} | ({"usage": None} if self._usage else {}) | more


def _head(name: str, kind: str, model: str, *, chat: bool) -> dict[str, Any]:
    prefix = "chatcmpl" if chat else "cmpl"
    return {"id": f"{prefix}-{name}", "object": kind, "created": int(time.time()), "model": model}


def _choice(index: int, said: dict[str, Any], *, finish_reason: str | None = None, **more: str) -> dict[str, Any]:
    return {"index": index, "finish_reason": finish_reason, "logprobs": None, **more, **said}


def _usage(done: Generated, n: int) -> dict[str, int]:
    """Count tokens; a prompt counts once, however many answers it has."""
    read, written = sum(done.prompt_tokens[::n]), sum(done.completion_tokens)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
