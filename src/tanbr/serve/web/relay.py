"""OpenAI's routes where an engine answers: what is not ours goes to the engine, and back, as it is."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from pydantic import Field
from pydantic_core import to_json

from tanbr.errors import InputError
from tanbr.serve.panel import VERSION
from tanbr.serve.records import ServiceInfo
from tanbr.serve.relay import TANBR, Call
from tanbr.serve.web.bodies import Sent, one_of
from tanbr.serve.web.completions import STREAMED, count
from tanbr.serve.web.config import HttpConfig
from tanbr.serve.web.refusals import Refusal
from tanbr.serve.web.waiting import Stream, settled

if TYPE_CHECKING:
    from tanbr.serve.service import Service

SESSION = "x-session-id"  # header that names a conversation


def expert_ids(info: ServiceInfo) -> dict[str, int]:
    """Name the experts that a client may ask for; one whose name is taken by another, or by us, has a number."""
    found: dict[str, int] = {}
    for k, name in enumerate(info.expert_names if info.experts_by_name else ()):
        plain = name.replace(" ", "-")
        taken = plain in found or plain == TANBR or plain.startswith(VERSION)
        found[f"{plain}-{k + 1}" if taken else plain] = k
    return found


def add_relay(app: FastAPI, service: "Service", config: HttpConfig) -> None:
    """Add the routes of a service whose requests go to an engine."""
    info, seconds, loading = service.info, config.answer_seconds, CapacityLimiter(1)
    experts = expert_ids(info)

    class Relayed(Sent, extra="allow"):
        """A request of OpenAI's API, with whatever the engine knows beyond what is named here."""

        model: str
        """`tanbr`, or a model that /v1/models lists."""
        n: Annotated[int, Field(ge=1, le=config.inputs)] | None = None
        """Answers to each prompt."""
        stream: bool | None = None
        """Whether to send each piece as it is made, as server-sent events."""
        task: Annotated[str, one_of(info.tasks)] | None = None
        """The task that the prompts belong to, if the client knows; an extension of ours."""

    class RelayedCompletion(Relayed):
        """Prompts to go on from."""

        prompt: Any
        """A text, tokens, or a list of either."""

    class RelayedChat(Relayed):
        """A conversation to go on with."""

        messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]

    async def answer(prompts: list[Any], body: Relayed, request: Request, turns: Sequence[Any] = ()) -> Response:
        """Have the engine answer, whole or as a stream."""
        count(request, len(prompts), body.n, config)
        sent = body.model_dump(exclude_unset=True, exclude={"task"})
        stream = Stream(request, seconds=seconds) if body.stream else None
        key, begins = _conversation(request, sent.get("user"), turns)
        call = Call(
            request.url.path, sent, prompts, body.n or 1, None if stream is None else stream.put, **named(body.model),
            name=body.model, conversation=key, begins=begins,
        )  # fmt: skip
        try:
            if call.expert is None:
                answering = service.relay(call, task=body.task)
            else:  # it may have to be loaded
                answering = await to_thread.run_sync(lambda: service.relay(call, task=body.task), limiter=loading)
        except InputError as error:
            raise Refusal(404 if not call.chosen else 422, str(error), param="model") from None
        if stream is not None:
            return await stream.response(answering, lambda last: [last] if last else [])
        done = await settled(answering, request, seconds=seconds)
        return Response(to_json(done), media_type="application/json")

    def named(model: str) -> dict[str, int]:
        """Find what a client has named: nothing, a merge version, or an expert."""
        number = model.removeprefix(VERSION)
        if model == TANBR:
            return {}
        if model in experts:
            return {"expert": experts[model]}
        if number != model and number.isdecimal() and len(number) < 16:
            return {"version": int(number)}
        raise Refusal.model(TANBR)

    @app.get("/v1/adapters/{name}", tags=["watching"])
    async def adapter(name: str) -> dict[Literal["folder"], str]:
        """Say where an adapter lies, for an engine that asks for it (`tanbr.vllm_plugin`)."""
        folder = service.folder_of(name)
        if folder is None:
            raise Refusal.model(TANBR)
        return {"folder": folder}

    @app.post("/v1/completions", tags=["answers"], responses=STREAMED)
    async def complete(body: RelayedCompletion, request: Request) -> Response:
        """Have the engine write to each prompt; each choice has a request_id, and the answer a merge_version."""
        prompt = body.prompt
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return await answer(prompt if several else [prompt], body, request)

    @app.post("/v1/chat/completions", tags=["answers"], responses=STREAMED)
    async def chat(body: RelayedChat, request: Request) -> Response:
        """Have the engine write the next message of a conversation, by its own chat template."""
        return await answer(["\n".join(filter(None, map(_said, body.messages)))], body, request, body.messages)


def _conversation(request: Request, user: Any, turns: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """Name the conversation by its session, its user or its first turns, and say whether it begins."""
    first = next((place + 1 for place, turn in enumerate(turns) if turn.get("role") == "user"), len(turns))
    session = request.headers.get(SESSION) or (user if isinstance(user, str) else "")
    said = [session] if session else list(turns[:first])
    key = hashlib.blake2b(to_json(said), digest_size=16).hexdigest() if said else ""
    return key, bool(turns) and not any(turn.get("role") == "assistant" for turn in turns)


def _said(message: dict[str, Any]) -> str:
    """Give the text of a message: what its task is recognised by."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n".join(part for part in parts if isinstance(part, str))
