"""OpenAI's completions and chat completions of a model that writes, whole or as a stream of server-sent events."""

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError, to_json

from tanbr.errors import CheckpointError, InputError
from tanbr.serve.records import Generated
from tanbr.serve.sampling import WritingOptions
from tanbr.serve.web.bodies import Sent, listed, one_of
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.refusals import Refusal, allows, shortened
from tanbr.serve.web.waiting import Stream, settled

if TYPE_CHECKING:
    from tanbr.serve.service import Service

NEUTRAL: dict[str, list[Any]] = {  # what changes nothing, though it is said, beside null, false, 0 and what is empty
    "best_of": [1], "function_call": ["none", "auto"], "modalities": [["text"]], "parallel_tool_calls": [True],
    "response_format": [{"type": "text"}], "service_tier": ["auto", "default"], "tool_choice": ["none", "auto"],
}  # fmt: skip
NOT_KEPT = {  # what changes no answer, whatever it is
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "user",
}  # fmt: skip
EVENT = {"type": "object", "properties": {"data": {"type": "string", "description": "A piece, or [DONE]."}}}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}

HOTTEST, MOST_STOPS = 2.0, 4  # temperature, and strings that may end an answer, as OpenAI's API has them
Stop = Annotated[str, Field(min_length=1, max_length=256)]  # a stream may have to hold back as many characters
Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)]


class TextPart(Sent):
    """A part of what somebody said: this server reads text, and neither pictures nor sound."""

    type: Literal["text"]
    text: str


Parts = Annotated[list[TextPart], Field(fail_fast=True)]


class ChatMessage(Sent, extra="ignore"):
    """What somebody said; answers may come back with all that is in them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Parts, listed(str | Parts, one=lambda text: {"type": "text", "text": text})]
    """A text, or parts that are joined by line breaks."""

    def plain(self) -> dict[str, str]:
        """Give what templates expect: one text."""
        return {"role": self.role, "content": "\n".join(part.text for part in self.content)}


def count(request: Request, prompts: int, n: int | None, config: HttpConfig) -> None:
    """Note how many answers a request gets, if it may have so many."""
    answers = request.scope["tanbr.texts"] = prompts * (n or 1)
    if answers > config.inputs:
        says = f"{answers} answers are too many; {config.inputs} are allowed{allows('inputs')}"
        raise Refusal(422, says, param="n")


def add_completions(app: FastAPI, service: "Service", config: HttpConfig) -> None:
    """Add the routes of a service whose model writes."""
    info = service.info
    Text = Annotated[str, Field(min_length=1, max_length=config.longest)]
    Texts = Annotated[list[Text], Field(min_length=1, max_length=config.inputs, fail_fast=True)]
    Tokens = Annotated[int, Field(ge=1, json_schema_extra={"maximum": info.max_tokens})]  # the service says why

    class Writable(Sent):
        """What OpenAI's clients say of any answer."""

        model: Annotated[str, Field(json_schema_extra={"enum": [info.model]})]
        """The id that /v1/models gives."""
        max_tokens: Tokens | None = None
        """Most tokens to write."""
        n: Annotated[int, Field(ge=1, le=config.inputs)] | None = None
        """Answers to each prompt; at temperature 0 all the same."""
        task: Annotated[str, one_of(info.tasks)] | None = None
        """The task that the prompts belong to, if the client knows; an extension of ours."""
        stream: bool | None = None
        """Whether to send each piece of text as it is made, as server-sent events."""
        stream_options: dict[str, Any] | None = None
        """With `include_usage`, a last piece counts the tokens."""
        temperature: Annotated[float, Field(ge=0, le=HOTTEST)] | None = None
        """What the logits are divided by before a word is drawn; 0, or not given: the most probable word each time."""
        top_p: Annotated[float, Field(ge=0, le=1)] | None = None
        """Draw from the smallest set of words with so much of the probability; no difference at temperature 0."""
        stop: Annotated[Stops, listed(Stop | Stops)] | None = None
        """An answer ends before the first of these strings, which is no part of it."""
        seed: int | None = None
        """The same seed, prompt and merge version give the same answer; no difference at temperature 0."""

        @model_validator(mode="before")
        @classmethod
        def _done_here(cls, value: Any) -> Any:
            """Refuse what is not done here, unless it changes nothing: then it is left out."""
            if not isinstance(value, dict):
                return value
            for name, said in value.items():
                neutral = not said or said in NEUTRAL.get(name, ()) or name in NOT_KEPT
                if name not in cls.model_fields and not neutral:
                    says = "this server does not support the parameter {name}; leave it out of the request"
                    raise PydanticCustomError("not_done", says, {"name": name})
            return {name: said for name, said in value.items() if name in cls.model_fields}

        def options(self) -> WritingOptions:
            """Say how answers are to be written."""
            top_p = 1.0 if self.top_p is None else self.top_p
            return WritingOptions(self.temperature or 0.0, top_p, self.seed, n=self.n or 1, stop=tuple(self.stop or ()))

    class CompletionRequest(
        Writable, json_schema_extra={"examples": [{"model": info.model, "prompt": "translate: hello"}]}
    ):
        """Prompts to go on from, or to answer."""

        prompt: Annotated[Texts, listed(Text | Texts)]

    class ChatRequest(
        Writable,
        json_schema_extra={"examples": [{"model": info.model, "messages": [{"role": "user", "content": "hello"}]}]},
    ):
        """A conversation to go on with."""

        messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
        max_completion_tokens: Tokens | None = None
        """The newer name of max_tokens."""

    async def answer(prompts: list[str], body: Writable, most: int | None, request: Request, *, chat: bool) -> Response:
        """Write answers to each prompt of at most so many tokens, whole or as a stream."""
        if body.model != info.model:
            raise Refusal.model(info.model)
        count(request, len(prompts), body.n, config)
        stream = Stream(request, seconds=config.answer_seconds) if body.stream else None
        usage = (body.stream_options or {}).get("include_usage") is True
        shape = Shape(info.model, chat=chat, n=body.n or 1, usage=usage)
        on_token = None if stream is None else lambda prompt, text: stream.put(shape.piece(prompt, text))
        try:
            writing = service.generate(
                prompts, max_tokens=most, options=body.options(), on_token=on_token, task=body.task
            )
        except InputError as error:  # more tokens than can be written
            raise Refusal(422, str(error), param="max_tokens") from None
        try:
            if stream is not None:
                return await stream.response(writing, shape.rest)
            done = await settled(writing, request, seconds=config.answer_seconds)
            return Response(to_json(shape.whole(done)), media_type="application/json")
        except InputError as error:  # a prompt with more tokens than the model reads
            param = "messages" if chat else "prompt"
            raise Refusal(400, shortened(str(error)), param=param, code="context_length_exceeded") from None

    @app.post("/v1/completions", tags=["answers"], responses=STREAMED)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Write answers to each prompt: OpenAI's completion, with a request_id in each choice, and a merge_version."""
        return await answer(body.prompt, body, body.max_tokens, request, chat=False)

    @app.post("/v1/chat/completions", tags=["answers"], responses=STREAMED)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Write the next message of a conversation, which the tokenizer's own template makes a prompt of."""
        try:
            rendering = service.chat([message.plain() for message in body.messages])
            prompt = await settled(rendering, request, seconds=config.answer_seconds)
        except InputError as error:
            raise Refusal(400, shortened(str(error)), param="messages") from None
        except CheckpointError as error:  # the operator chose the checkpoint
            raise Refusal(500, str(error)) from None
        if len(prompt) > config.longest:
            says = f"messages must make a prompt of at most {config.longest} characters"
            raise Refusal(422, says + allows("text_chars"), param="messages")
        most = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
        return await answer([prompt], body, most, request, chat=True)


class Shape:
    """The shape of OpenAI's answers: whole, or in pieces that its clients join name by name, so the role comes once."""

    def __init__(self, model: str, *, chat: bool, n: int, usage: bool) -> None:
        """Shape `n` answers to each prompt; with `usage`, a stream's last piece counts the tokens."""
        self._model, self._chat, self._n, self._usage = model, chat, n, usage
        self._name = uuid.uuid4().hex  # of a stream: the ids of its answers come last
        self._begun: set[int] = set()  # answers of which there was a piece

    def whole(self, done: Generated) -> dict[str, Any]:
        """Show a whole answer."""
        choices = [
            self._choice(i, {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}, done)
            for i, text in enumerate(done.texts)
        ]
        head = self._head(done.request_ids[0], "chat.completion", choices)
        return head | {"usage": self._tokens(done), "merge_version": done.merge_version}

    def piece(self, index: int, text: str, done: Generated | None = None) -> dict[str, Any]:
        """Show a text that was added to an answer."""
        said: dict[str, Any] = {"text": text}
        if self._chat:
            first = index not in self._begun
            said = {"delta": ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})}
        self._begun.add(index)
        return self._event([self._choice(index, said, done)])

    def rest(self, done: Generated) -> Iterator[dict[str, Any]]:
        """Say how each answer ended, and count the tokens if that was asked for."""
        versions = done.merge_versions or (done.merge_version,) * len(done.request_ids)
        for i, version in enumerate(versions):
            yield self.piece(i, "", done) | {"merge_version": version}
        if self._usage:
            yield self._event([]) | {"usage": self._tokens(done)}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head(self._name, "chat.completion.chunk", choices) | ({"usage": None} if self._usage else {})

    def _head(self, name: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        prefix, kind = ("chatcmpl", kind) if self._chat else ("cmpl", "text_completion")
        head = {"id": f"{prefix}-{name}", "object": kind, "created": int(time.time()), "model": self._model}
        return head | {"choices": choices}

    def _choice(self, index: int, said: dict[str, Any], done: Generated | None) -> dict[str, Any]:
        ended = {} if done is None else {"request_id": done.request_ids[index]}
        reason = None if done is None else done.finish_reasons[index]
        return {"index": index, "finish_reason": reason, "logprobs": None, **ended, **said}

    def _tokens(self, done: Generated) -> dict[str, int]:
        """Count tokens; a prompt counts once, however many answers it has."""
        read, written = sum(done.prompt_tokens[:: self._n]), sum(done.completion_tokens)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
