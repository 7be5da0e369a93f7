"""llama.cpp's server, which adds K adapters by itself: a blend is K scales.

It must have been started with `--lora` for each expert, in their order. A scale is x_k: the files carry α, and the
server divides by the rank. Every prompt names its scales, so that an answer is of these or of none.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.engines.dialect import Dialect, Merge, Served
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge.sources.one_adapter import joinable

ROUTE = "/lora-adapters"


def _factors(moe: Moe) -> list[float]:
    """Give what each adapter (K,) is scaled by beyond the α/r that llama.cpp knows; refuse what is not one number.

    Its converter writes one α per adapter, and nothing of rslora.
    """
    source, found = joinable(moe), []
    for adapter in source.adapters:
        alpha = float(adapter.settings["lora_alpha"])
        each = [layer.scale * layer.down.shape[0] / alpha for layer in adapter.factors.values()]
        if not np.allclose(each, each[0]):
            raise InputError(f"llama.cpp gives an adapter one scale, and {adapter.path} needs several (alpha_pattern)")
        if adapter.whole or not adapter.factors.keys() <= source.factors.keys():
            raise InputError(
                f"llama.cpp adds an adapter whole, and {adapter.path} is to be added in part or holds more"
            )
        found.append(each[0])
    return found


class LlamaCpp(Dialect):
    """The calls of llama-server. Nothing is ever loaded: a label stands for scales that go with each request."""

    def __init__(self, moe: Moe, url: str, *, token: str | None = None) -> None:
        self._factors = _factors(moe)  # (K,), without the base
        super().__init__(moe, url, token=token)
        self._scales: dict[str, list[dict[str, float]]] = {}  # label → (K,)
        self._files: list[str] = []  # base and adapters that it was found with
        self._turns = Turns()

    async def served(self) -> Served:
        """Ask /props."""
        props = await self.ask("GET", "/props")
        try:
            return Served(str(props["model_path"]), props["default_generation_settings"].get("n_ctx"))
        except (KeyError, TypeError, AttributeError):
            raise EngineRefused(f"{self.url} does not answer as llama-server does; is it one?") from None

    def text_body(self, text: str) -> dict[str, Any]:
        """Make the body of a call to /tokenize."""
        return {"content": text, "add_special": True}

    async def fits(self, *, models: int, most: int) -> None:  # noqa: ARG002 - scales cost nothing
        """Look at the server's files."""
        self._files = await self._found()
        if len(self._files) - 1 != len(self._factors):
            raise EngineRefused(
                f"the engine has {len(self._files) - 1} adapters, and {len(self._factors)} experts are blended; start "
                "llama-server with --lora for each of them, in their order"
            )

    async def held(self) -> Collection[str]:
        """Give every label; refuse a server with other files than it was found with: it has taken the first's place."""
        found = await self._found()
        if found != self._files:
            had = ", ".join(self._files)
            raise EngineRefused(f"the engine has {', '.join(found)}, and had {had}; start it as before")
        return list(self._scales)

    async def load(self, merge: Merge) -> None:
        """Keep the scales, which go with each request; of the base's share, the last, there is nothing to load."""
        factors = enumerate(self._factors)
        self._scales[merge.label] = [{"id": k, "scale": float(merge.blend[k]) * factor} for k, factor in factors]

    async def unload(self, merge: Merge) -> None:
        """Forget the scales."""
        self._scales.pop(merge.label, None)

    def asked(self, body: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Name the scales. The server's prompt cache goes by tokens, whatever the scales were: compute all of it."""
        return {**body, "lora": self._scales[label], "cache_prompt": False}

    async def confirm(self, answer: Any, label: str) -> None:  # noqa: ARG002 - an answer names no files
        """Look at the server's files."""
        await self.held()

    def turn(self, label: str) -> AbstractAsyncContextManager[None]:
        """Wait until no other scales are at work."""
        return self._turns.of(label)

    async def _found(self) -> list[str]:
        """Ask for the files of base and adapters, these in the order of their ids."""
        served, adapters = await asyncio.gather(self.served(), self.ask("GET", ROUTE))
        try:
            return [served.model, *(str(one["path"]) for one in sorted(adapters, key=lambda one: int(one["id"])))]
        except (KeyError, TypeError, ValueError):
            raise EngineLost(f"{self.url} does not list adapters as llama-server does") from None


@dataclass(eq=False)
class Turn:
    """Requests with equal scales that are computed together."""

    label: str
    requests: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class Turns:
    """Who may be sent: the server computes one set of scales at a time, and those that wait in it take up its places.

    Requests with equal scales go together, and none joins them while others wait; then those go that waited longest.
    """

    def __init__(self) -> None:
        self._turns: list[Turn] = []  # that which is computed, then those that wait

    @asynccontextmanager
    async def of(self, label: str) -> AsyncGenerator[None]:
        """Hold the turn of a label."""
        turn = next((one for one in self._turns[1:] or self._turns if one.label == label), None)
        if turn is None:
            turn = Turn(label)
            self._turns.append(turn)
        turn.requests += 1
        try:
            self._turns[0].begun.set()
            await turn.begun.wait()
            yield
        finally:
            turn.requests -= 1
            if not turn.requests:
                self._turns.remove(turn)
                if self._turns:
                    self._turns[0].begun.set()
