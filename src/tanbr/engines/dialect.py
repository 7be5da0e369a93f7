"""What tanbr needs of an engine: how it is asked, and that it runs the model that tanbr merges."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from tanbr.engines.connection import Connection, EngineError
from tanbr.errors import ConfigError, TanbrError
from tanbr.merge import Moe
from tanbr.merge.sources.alike import weights_of
from tanbr.merge.sources.source import BASE
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.text import TextEncoder, positions
from tanbr.types import Blend

OURS = "tanbr-"  # prefix of every label that we give
PROBE = "The quick brown fox jumps over 13 lazy dogs."  # that both tokenizers must read alike
HOLDS = {"float32": {"float32", "bfloat16", "float16"}}  # dtype → what it holds without loss, beside itself
ADVICE = "start it with what `tanbr merge` makes of this checkpoint"


@dataclass(frozen=True)
class Served:
    """What an engine says of itself."""

    model: str  # that it was started with: a folder, or a hub id
    positions: int | None  # tokens that a prompt and its answer may have together; None if it does not say
    dtype: str | None = None  # as torch names it, "float32"; None if it does not say
    quantised: str | None = None  # how its weights are quantised, if they are


@dataclass(frozen=True, eq=False)
class Merge:
    """A blend as an engine loads it."""

    label: str  # that no other merge has or had: no cache of the engine and no other server knows it
    blend: Blend  # (K,)
    folder: Path  # where it is written, if this engine reads files


class Dialect(Connection, ABC):
    """A connection to one kind of engine, and how it is talked to. Every call raises EngineLost or EngineRefused."""

    many: ClassVar[bool] = True  # whether it holds several merges side by side, over the base it was started with
    room = 0  # bytes of a merge that is written for it, at most

    def __init__(self, moe: Moe, url: str, *, token: str | None = None) -> None:
        """Take what is merged, and the engine's address; InputError if this engine cannot hold blends of it."""
        super().__init__(url, token=token)
        self.moe = moe

    @abstractmethod
    async def served(self) -> Served:
        """Ask which model the engine runs, and how."""

    @abstractmethod
    def text_body(self, text: str) -> dict[str, Any]:
        """Make the body of a call to /tokenize."""

    @abstractmethod
    async def held(self) -> Collection[str]:
        """Ask for the labels of the merges that it holds."""

    @abstractmethod
    async def load(self, merge: Merge) -> None:
        """Load a merge. No answer mixes old and new weights, and no cache of the old ones is used."""

    @abstractmethod
    def asked(self, body: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Make of a client's request, in OpenAI's form, one that this merge answers."""

    async def fits(self, *, models: int, most: int) -> None:
        """Refuse a panel of so many models, which blend `most` experts at most, that it was not started for."""

    def write(self, merge: Merge, *, share: float) -> None:
        """Write a merge to its folder, if the engine reads it there, resting as `Backend.merge` does."""

    def turn(self, label: str) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - most make batches of anything
        """Wait until requests for this merge may be sent."""
        return nullcontext()

    async def confirm(self, answer: Any, label: str) -> None:
        """Make sure that an answer, of which nobody has heard yet, came from this merge."""

    async def unload(self, merge: Merge) -> None:
        """Forget a merge, whose folder is about to be deleted."""

    async def tokens(self, text: str) -> list[int] | None:
        """Tokenize a text with the engine's own tokenizer; None if it has none."""
        try:
            return list((await self.ask("POST", "/tokenize", self.text_body(text)))["tokens"])
        except EngineError as error:
            if error.status is None:
                raise
            return None
        except (KeyError, TypeError):
            return None


def check_same(engine: Dialect, encode: TextEncoder) -> Served:
    """Ask the engine what it serves; refuse another model, as far as the engine tells, before any weights are sent."""
    moe, served, where = engine.moe, engine.call(engine.served()), f"the engine at {engine.url}"
    _check_tensors(moe, served, where, same=engine.many)
    longest = positions(moe.path)
    if served.positions is not None and longest is not None and served.positions > longest:
        raise ConfigError(f"{where} reads {served.positions} tokens, and {moe.path} has {longest} positions; {ADVICE}")
    if served.quantised is not None:
        raise ConfigError(
            f"{where} quantises its weights ({served.quantised}), and merges are not; start it without that"
        )
    for dtype in sorted({str(tensor.dtype).removeprefix("torch.") for tensor in moe.plan.specs.values()}):
        if served.dtype is not None and dtype not in {served.dtype, *HOLDS.get(served.dtype, ())}:
            raise ConfigError(
                f"{where} computes in {served.dtype}, and {moe.path} is {dtype}; start it with --dtype {dtype}"
            )
    theirs, ours = engine.call(engine.tokens(PROBE)), list(encode.encode([PROBE]).columns["input_ids"][0])
    if theirs is not None and theirs != ours:
        raise ConfigError(
            f"{where} has another tokenizer than {moe.path} (tokens {theirs[:4]} …, not {ours[:4]} …); {ADVICE}"
        )
    return served


def _check_tensors(moe: Moe, served: Served, where: str, *, same: bool) -> None:
    """Compare names and shapes, where the checkpoint that the engine was started with can be read here.

    If the engine keeps its weights, they must be the `same` as the base's.
    """
    if not Path(served.model).is_dir():
        return
    try:
        started = Checkpoint(served.model)
    except TanbrError:
        return  # weights in another form: the engine reads them, we cannot
    theirs, ours = {name: spec.shape for name, spec in weights_of(started).items()}, moe.plan.shapes
    name = next((name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)), None)
    if name is not None:
        raise ConfigError(
            f"{where} runs {served.model}, where {name} is {theirs.get(name, 'missing')}, but in a merge of {moe.path} "
            f"it is {ours.get(name, 'missing')}; {ADVICE}"
        )
    if same and started.path.resolve() != moe.path.resolve():
        for name in ours:
            if not torch.equal(moe.checkpoint.tensor(f"{BASE}:{name}"), started.tensor(name)):
                raise ConfigError(
                    f"{where} runs {served.model}, whose {name} is not that of {moe.path}; start it with that base"
                )
