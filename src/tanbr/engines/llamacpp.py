"""llama.cpp's server, which adds K adapters by itself: a blend is K scales. By its documentation and source alone.

It must have been started with `--lora` for each expert, in their order. A scale is x_k: the files carry α, and the
server divides by the rank. Every prompt names its scales, so that an answer is of these or of none.
"""

import json
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.engines.dialect import Dialect, Piece, Served
from tanbr.engines.merge_files import MergeFile
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge.sources.one_adapter import joinable
from tanbr.serve.decode import NotFinite
from tanbr.serve.sampling import Sampling
from tanbr.types import Blend

FILE, ROUTE = "scales.json", "/lora-adapters"
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1}
WRITE_SECONDS = 1800.0  # for a whole answer; clients give up earlier by themselves
SEEDS = 2**32 - 1  # that it knows; one more stands for chance


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

    _label = ""
    _scales: Sequence[dict[str, float]] = ()  # (K,) of the version that was loaded last

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

    async def label(self) -> str:
        """Ask for the scales, which the server keeps in 32 bits."""
        held = await self._held()
        wanted = [one["scale"] for one in self._scales]
        same = bool(wanted) and np.array_equal(np.array(held, np.float32), np.array(wanted, np.float32))
        return self._label if same else f"adapters with the scales {held}"

    async def load(self, folder: Path, label: str) -> None:
        """Set the scales: for clients who ask the server themselves, and for `label`."""
        scales = json.loads((folder / FILE).read_text(encoding="utf-8"))
        held = await self._held()
        if len(held) != len(scales):
            raise EngineRefused(
                f"the engine has {len(held)} adapters, and {len(scales)} experts are blended; start llama-server with "
                "--lora for each of them, in their order"
            )
        await self.ask("POST", ROUTE, scales)
        self._scales, self._label = scales, label

    async def write(
        self, prompt: Sequence[int], limit: int, ends: Collection[int], sampling: Sampling | None = None
    ) -> AsyncGenerator[Piece]:
        """Answer in one piece: what it streams lacks the tokens of incomplete characters.

        Its prompt cache goes by tokens, whatever the scales were, so it must compute the whole prompt.
        """
        asked = {"prompt": list(prompt), "n_predict": limit, "cache_prompt": False, "stream": False}
        asked |= {"return_tokens": True, "n_probs": 1, "lora": self._scales, **GREEDY}
        if sampling is not None:
            seed = sampling.seed % SEEDS
            asked |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": seed}
        try:
            yield _piece(await self.ask("POST", "/completion", asked, seconds=WRITE_SECONDS), ends)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineLost(f"the engine answers as llama-server does not ({type(error).__name__}: {error})") from None

    async def _held(self) -> list[float]:
        """Ask for the scale of each adapter, in the order of their ids."""
        adapters = await self.ask("GET", ROUTE)
        try:
            return [float(one["scale"]) for one in sorted(adapters, key=lambda one: int(one["id"]))]
        except (KeyError, TypeError, ValueError):
            raise EngineLost(f"{self.url} does not list adapters as llama-server does") from None


def _piece(answer: dict[str, Any], ends: Collection[int]) -> Piece:
    tokens = tuple(int(token) for token in answer["tokens"])
    said = [one["logprob"] for one in answer["completion_probabilities"]]  # of tokens that end a character
    if any(value is None or not math.isfinite(value) for value in said):
        raise NotFinite
    if len(said) != len(tokens):
        said = [float(np.mean(said or [0.0]))] * len(tokens)
    at = next((at for at, token in enumerate(tokens) if token in ends), None)
    if at is not None:
        return Piece(tokens[: at + 1], tuple(said[: at + 1]), "stop")
    if answer["stop_type"] == "limit":
        return Piece(tokens, tuple(said), "length")
    return Piece(tokens[:-1], tuple(said[:-1]), "stop")  # the last one ends an answer for the engine
