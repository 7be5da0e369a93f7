"""llama.cpp's server, which adds K adapters by itself: a blend is K scales. By its documentation and source alone.

It must have been started with `--lora` for each expert, in their order. A scale is x_k: the files carry α, and the
server divides by the rank. Every prompt names its scales, so that an answer is of these or of none.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.engines.dialect import Dialect, Served
from tanbr.engines.merge_files import MergeFile
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge.sources.one_adapter import joinable
from tanbr.types import Blend

FILE, ROUTE = "scales.json", "/lora-adapters"


class ScalesFile(MergeFile):
    """The scales of a blend, as the server takes them."""

    def __init__(self, moe: Moe, folder: Path) -> None:
        super().__init__(moe, folder)
        self._factors = _factors(moe)
        folder.mkdir(mode=0o755)

    @staticmethod
    def room(moe: Moe) -> int:
        """Give the bytes of K scales, at most."""
        return 64 * len(_factors(moe))

    def _write(self, moe: Moe, blend: Blend, share: float) -> None:  # noqa: ARG002 - nothing is merged
        scales = [{"id": k, "scale": x * self._factors[k]} for k, x in enumerate(blend[: len(self._factors)])]
        (self.folder / FILE).write_text(json.dumps(scales), encoding="utf-8")


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
    """The calls of llama-server."""

    kind: ClassVar[type[MergeFile]] = ScalesFile

    def __init__(self, url: str, *, token: str | None = None) -> None:
        super().__init__(url, token=token)
        self._scales: dict[str, list[dict[str, float]]] = {}  # label → (K,)

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

    async def held(self) -> Collection[str]:
        """Give every label, as long as the server has the adapters: the scales go with each request."""
        have = await self._held()
        return [label for label, scales in self._scales.items() if len(scales) == len(have)]

    async def load(self, folder: Path, label: str) -> None:
        """Keep the scales."""
        scales = json.loads((folder / FILE).read_text(encoding="utf-8"))
        held = await self._held()
        if len(held) != len(scales):
            raise EngineRefused(
                f"the engine has {len(held)} adapters, and {len(scales)} experts are blended; start llama-server with "
                "--lora for each of them, in their order"
            )
        self._scales[label] = scales

    async def unload(self, label: str) -> None:
        """Forget the scales."""
        self._scales.pop(label, None)

    def asked(self, body: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Name the scales. The server's prompt cache goes by tokens, whatever the scales were: compute all of it."""
        return {**body, "lora": self._scales[label], "cache_prompt": False}

    async def _held(self) -> list[float]:
        """Ask for the scale of each adapter, in the order of their ids."""
        adapters = await self.ask("GET", ROUTE)
        try:
            return [float(one["scale"]) for one in sorted(adapters, key=lambda one: int(one["id"]))]
        except (KeyError, TypeError, ValueError):
            raise EngineLost(f"{self.url} does not list adapters as llama-server does") from None
