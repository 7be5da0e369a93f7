"""What the engine needs of whatever runs a model. A new backend has `merge`, `twin`, and `classify` or `generate`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.moe.text import Inputs
from tanbr.serve.backends.choose import Precision
from tanbr.serve.decode import Row
from tanbr.types import Blend, FloatArray


@dataclass(frozen=True)
class Size:
    """What a model takes."""

    parameters: int
    nbytes: int
    own_bytes: int  # of it, what a twin does not share


class Backend(ABC):
    """A dense model that answers, and the one way other weights get into it.

    It answers in one thread at a time for each twin, and not while `merge` runs. Defaults are those of a classifier in
    this process's memory, in float32.
    """

    readers: int = 0  # batches that are being answered with it; the engine counts them
    columns: tuple[str, ...] = ()  # names of a classifier's columns
    writes: bool = False  # whether the model writes text; otherwise it classifies, or
    embeds: bool = False  # makes a vector of a text: its columns are the vector's numbers
    causal: bool = False  # whether it continues its prompt: padded on the left, sharing the positions with the answer
    positions: int | None = None  # room for tokens, where that is less than the checkpoint's own positions
    asked_when_loaded: bool = False  # whether `merge` itself asks it, because it cannot be asked before it answers
    relays: bool = False  # whether requests go to an engine as they are (`relay`)
    many: bool = False  # whether another twin costs little: any expert can then be asked by its name
    adapter: tuple[str, str] | None = None  # what an engine calls it, and where the engine reads it, if it is one
    short: int = 0  # tokens times parameters of a batch that one core answers as soon as several would
    precision: Precision = "fp32"  # that it computes in
    agreement: float | None = None  # share of probes that it answers as float32 does; None: not asked
    exact: "Backend | None" = None  # the same model in float32, which answers again …
    margin: float = 0.0  # … where the two best columns are no further apart
    chosen: str = ""  # what the trial at start found, in a line

    @property
    def available(self) -> bool:
        """Whether it can be asked now: an engine elsewhere may be lost for a while."""
        return True

    @property
    def size(self) -> Size:
        """What the model takes."""
        return Size(0, 0, 0)

    @abstractmethod
    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) into the FFNs, resting so that at most `share` of the time is work."""

    @abstractmethod
    def twin(self, moe: Moe) -> Self:
        """Make a second one that shares with this all that no blend changes."""

    def spares(self, models: int) -> int:  # noqa: ARG002
        """How many buffers there are room for beside a panel of so many models, where memory is not short."""
        return 1

    def relay(
        self,
        path: str,
        body: Mapping[str, Any],
        hear: Callable[[dict[str, Any]], None],
        headers: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> "Future[None]":
        """Have an engine answer a request in OpenAI's form; `hear` gets each event, in another thread."""
        raise InputError(f"this model answers by itself; nobody hears {len(body)} fields at {path} for {hear}")

    def classify(self, inputs: Inputs) -> FloatArray:
        """Answer padded texts: logits (n, columns), in float64."""
        raise InputError(f"this model writes text; it has no labels for {len(inputs['input_ids'])} texts")

    def generate(self, inputs: Inputs, rows: Sequence[Row]) -> None:  # noqa: ARG002
        """Answer padded prompts: each token is added to its row, until all rows are done."""
        raise InputError(f"this model classifies; it cannot write answers to {len(inputs['input_ids'])} prompts")

    def stage(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:  # noqa: B027 - most have nothing to do
        """Do the part of the next merge that can be done while this model answers, if there is one."""

    def close(self) -> None:  # noqa: B027
        """Release what is not this process's own memory, if there is any."""


# Makes a backend of an MoE, a first blend (K,) (all experts alike if None), G models of the panel that it is the first
# of, a device, a precision or "auto", and a function that gives texts of like length to find a precision out by.
Builder: TypeAlias = Callable[..., Backend]
