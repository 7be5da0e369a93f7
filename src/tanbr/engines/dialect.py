"""What tanbr needs of an engine that another process runs, and the one thing engines differ in: how they are asked."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from tanbr.engines.connection import Connection
from tanbr.engines.merge_files import MergeFile
from tanbr.serve.records import ServiceError
from tanbr.serve.sampling import Sampling

OURS = "tanbr-"  # how the labels begin that we give
CHANGING = f"{OURS}changing"  # label of weights that are being loaded: nobody may take them for a version


class EngineRefused(ServiceError):  # noqa: N818 - a verdict
    """The engine answers, and does not do what it was asked."""


@dataclass(frozen=True)
class Served:
    """What an engine says of itself."""

    model: str  # that it was started with: a folder, or a hub id
    positions: int | None  # tokens that a prompt and its answer may have together; None if it does not say
    dtype: str | None  # as torch names it, "float32"; None if it does not say
    quantised: str | None = None  # how its weights are quantised, if they are


@dataclass(frozen=True)
class Piece:
    """A part of an answer."""

    tokens: tuple[int, ...]  # new ones, with the one that ends the answer if it does
    logprobs: tuple[float, ...]  # of each
    end: str | None = None  # "stop" or "length" with the last piece


class Dialect(Protocol):
    """How one kind of engine is talked to; every call raises EngineLost or EngineRefused."""

    name: ClassVar[str]
    kind: ClassVar[type[MergeFile]]  # what it loads
    keeps_base: ClassVar[bool]  # whether it adds to the weights it was started with, which must be the base's then

    def __init__(self, connection: Connection) -> None: ...

    async def served(self) -> Served:
        """Say which model it runs, and how."""
        ...

    async def tokens(self, text: str) -> Sequence[int] | None:
        """Tokens of a text, by the engine's own tokenizer; None if it does not tell."""
        ...

    async def label(self) -> str:
        """The label that the weights were given when they were loaded last."""
        ...

    async def load(self, folder: Path, label: str) -> None:
        """Wait for what is being generated, load a merge, forget every cache of the old one, and go on.

        The label says `CHANGING` until all of it is done.
        """
        ...

    async def wake(self) -> None:
        """Go on, if somebody who is gone has left it paused."""
        ...

    async def leave(self, folder: Path) -> None:
        """Have nobody ask for what it may have to read from `folder` again, which is about to go."""
        ...

    def write(
        self, prompt: Sequence[int], limit: int, ends: Collection[int], sampling: Sampling | None = None
    ) -> AsyncGenerator[Piece]:
        """Answer a prompt, with at most `limit` tokens or to one that `ends` it, and to no other; greedily by default.

        Closing the generator ends the work.
        """
        ...
