"""What tanbr needs of an engine. Engines differ in one thing: how they are asked."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tanbr.engines.connection import Connection, EngineError
from tanbr.engines.merge_files import MergeFile

OURS = "tanbr-"  # prefix of every label that we give


@dataclass(frozen=True)
class Served:
    """What an engine says of itself."""

    model: str  # that it was started with: a folder, or a hub id
    positions: int | None  # tokens that a prompt and its answer may have together; None if it does not say
    dtype: str | None = None  # as torch names it, "float32"; None if it does not say
    quantised: str | None = None  # how its weights are quantised, if they are


class Dialect(Connection, ABC):
    """A connection to one kind of engine, and how it is talked to. Every call raises EngineLost or EngineRefused."""

    kind: ClassVar[type[MergeFile]]  # what it loads
    many: ClassVar[bool] = True  # whether it holds several merges side by side, over the base it was started with

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
    async def load(self, folder: Path, label: str) -> None:
        """Load a merge under a label. No answer mixes old and new weights, and no cache of the old ones is used."""

    @abstractmethod
    def asked(self, body: Mapping[str, Any], label: str) -> dict[str, Any]:
        """Make of a client's request, in OpenAI's form, one that this merge answers."""

    async def fits(self, *, models: int, rank: int) -> None:
        """Refuse a panel of so many models, or adapters of a `rank`, that it was not started for."""

    def turn(self, label: str) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - most make batches of anything
        """Wait until requests for this merge may be sent."""
        return nullcontext()

    async def confirm(self, answer: Any, label: str) -> None:
        """Make sure that an answer, of which nobody has heard yet, came from this merge."""

    async def unload(self, label: str) -> None:
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

    async def wake(self) -> None:
        """Resume, if a process that is gone has left the engine paused."""
