"""What tanbr needs of an engine. Engines differ in one thing: how they are asked."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tanbr.engines.connection import Connection, EngineError
from tanbr.engines.merge_files import MergeFile
from tanbr.serve.sampling import Sampling

OURS = "tanbr-"  # prefix of every label that we give


@dataclass(frozen=True)
class Served:
    """What an engine says of itself."""

    model: str  # that it was started with: a folder, or a hub id
    positions: int | None  # tokens that a prompt and its answer may have together; None if it does not say
    dtype: str | None = None  # as torch names it, "float32"; None if it does not say
    quantised: str | None = None  # how its weights are quantised, if they are


@dataclass(frozen=True)
class Piece:
    """A part of an answer."""

    tokens: tuple[int, ...]  # new ones, including the one that ends the answer
    logprobs: tuple[float, ...]  # of each
    end: str | None = None  # "stop" or "length" with the last piece


class Dialect(Connection, ABC):
    """A connection to one kind of engine, and how it is talked to. Every call raises EngineLost or EngineRefused."""

    kind: ClassVar[type[MergeFile]]  # what it loads
    keeps_base: ClassVar[bool] = True  # whether it adds to the weights it was started with, which must be the base's

    @abstractmethod
    async def served(self) -> Served:
        """Ask which model the engine runs, and how."""

    @abstractmethod
    def text_body(self, text: str) -> dict[str, Any]:
        """Make the body of a call to /tokenize."""

    @abstractmethod
    async def label(self) -> str:
        """Ask for the label of the weights that were loaded last."""

    @abstractmethod
    async def load(self, folder: Path, label: str) -> None:
        """Load a merge under a label. No answer mixes old and new weights, and no cache of the old ones is used."""

    @abstractmethod
    def write(
        self, prompt: Sequence[int], limit: int, ends: Collection[int], sampling: Sampling | None = None
    ) -> AsyncGenerator[Piece]:
        """Write at most `limit` tokens, up to one of `ends`; greedily without `sampling`. Closing it ends the work."""

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

    async def wake(self) -> None:
        """Resume, if a process that is gone has left the engine paused."""

    async def leave(self, folder: Path) -> None:
        """Stop requests that would read `folder`, before it is deleted."""
