"""What the engine needs of whatever runs a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeAlias

from tanbr.merge import Moe
from tanbr.merge.int8 import Int8Loss
from tanbr.moe.text import Inputs
from tanbr.serve.decode import Decoded, OnStep
from tanbr.serve.sampling import Sampling
from tanbr.types import Blend, FloatArray

Newcomers: TypeAlias = Callable[[int], tuple[Inputs, Sequence[int], Sequence[Sampling | None]] | None]


@dataclass(frozen=True)
class Size:
    """What a model takes."""

    parameters: int
    nbytes: int
    own_bytes: int  # of it, what a twin does not share


class Backend(Protocol):
    """A dense model that answers, and the one way other weights get into it.

    It answers in one thread at a time for each twin; nobody answers with it while `merge` runs.
    """

    readers: int  # batches that are being answered with it; the engine counts them
    asked_when_loaded: bool  # whether a merge cannot be looked over before it answers, and `merge` itself asks it

    @property
    def writes(self) -> bool:
        """Whether the model writes text; otherwise it classifies."""
        ...

    @property
    def causal(self) -> bool:
        """Whether it goes on from its prompt: padded on the left, sharing the positions with the answer."""
        ...

    @property
    def positions(self) -> int | None:
        """Tokens that there is room for, where they are fewer than the checkpoint's own positions."""
        ...

    @property
    def available(self) -> bool:
        """Whether it can be asked now: what runs elsewhere may be lost for a while."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of a classifier's columns."""
        ...

    @property
    def size(self) -> Size:
        """What the model takes."""
        ...

    @property
    def loss(self) -> Int8Loss | None:
        """How far its answers were measured to be from those of float32; None if it is float32."""
        ...

    def stage(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Do of the next merge what can be done while this model answers, if anything."""
        ...

    def close(self) -> None:
        """Let go of what is not this process's own memory."""
        ...

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) into the FFNs, resting so that at most `share` of the time is work."""
        ...

    def twin(self, moe: Moe) -> Self:
        """Make a second one that shares with this all that no blend changes."""
        ...

    def classify(self, inputs: Inputs) -> FloatArray:
        """Answer padded texts: logits (n, columns), in float64."""
        ...

    def generate(
        self,
        inputs: Inputs,
        *,
        limits: Sequence[int],
        on_step: OnStep,
        more: Newcomers | None = None,
        sampling: Sequence[Sampling | None] = (),
    ) -> Decoded:
        """Answer padded prompts with at most limits[i] tokens, drawn as sampling[i] says; as `decode.decode` does.

        Between two steps `more` may be asked, with how many rows are at work, for prompts, limits, samplings that join.
        """
        ...


class Builder(Protocol):
    """Makes a backend of an MoE."""

    def __call__(
        self,
        moe: Moe,
        *,
        blend: Blend | None,
        device: str,
        probes: Callable[[], Sequence[Inputs]],
        least_agreement: float,
    ) -> Backend:
        """Merge a blend (K,) (all experts alike if None) into a new model.

        One that does not compute in float32 is refused (InputError) if on the `probes` it gives another answer than
        float32 more often than `least_agreement` allows.
        """
        ...
