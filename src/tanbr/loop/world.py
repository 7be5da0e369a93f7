"""The questions that a turn asks of whatever serves its slots, and of what tells the mix of requests."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from tanbr.loop.guard import Probes
from tanbr.loop.practice import Logged
from tanbr.loop.rewards import Given, Tally
from tanbr.loop.slot import Choice, Slot, Turn
from tanbr.monitor.recogniser import Recognition
from tanbr.types import Blend, FloatArray, SlotMix, TaskMix, Text

if TYPE_CHECKING:
    from tanbr.loop.learner import Learner


class MixSource(Protocol):
    """What tells the mix of untagged requests; `tanbr.Monitor` is one."""

    @property
    def confusion(self) -> FloatArray | None:
        """Share of each task's requests that is read as each task (V, V); None if all are read rightly."""

    def count(self, seen: Recognition) -> None:
        """Take in requests of the open slot that were recognised."""

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the forecast for the next."""

    def fork(self) -> "MixSource":
        """Give an independent copy."""


class Prepared(Protocol):
    """A blend that is ready to answer."""

    @property
    def version(self) -> int:
        """Its merge version."""

    @property
    def changed(self) -> bool:
        """Whether it does not answer already."""


P = TypeVar("P", bound=Prepared)


class World(Protocol[P]):
    """Where slots are served."""

    def last_reward(self) -> int:
        """Number of the newest reward."""

    def rewards(self, *, after: int, upto: int, slot: int | None = None) -> Sequence[Given]:
        """List the rewards with after < number ≤ upto, of one slot or of all, oldest first."""

    def measured(self, slot: int) -> dict[int, Tally]:
        """Rewards that the world gave the models of a slot by itself, by the place of the model."""

    def texts(self, ids: Sequence[bytes]) -> Mapping[bytes, Text]:
        """Look up the texts of answered requests, as far as they are at hand."""

    def logged(self, rows: Sequence[Given], mix: TaskMix) -> Sequence[Logged]:
        """Look up requests to practise on: those whose outcome says what other answers would have earned.

        They were answered in a slot of this mix (V,).
        """

    def ended(self, number: int) -> Slot | None:
        """Find a slot that the router was told already."""

    def answering(self, slot: Slot) -> Choice | None:
        """Say what answers now, where `slot` is open: all of its models, unless one broke. None: nothing does."""

    def prepare(self, blend: Blend, version: int | None) -> P:
        """Make the merge of a blend (K,) ready to answer; `version` numbers one that had a number before."""

    def probe(self, prepared: P, *, fully: bool) -> Probes:
        """Ask a blend that is ready the probe texts, or only whether it answers with numbers."""

    def discard(self) -> None:
        """Forget what was prepared."""

    def write(self, turn: Turn, learner: "Learner") -> None:
        """Write the turn down, before anything of it shows; if it raises, nothing happened."""

    def commit(self, prepared: Sequence[P], learner: "Learner") -> None:
        """Let what was prepared, and nothing else, answer from now on.

        Where it has to merge for that it may fail: what answers then is whole, old or new.
        """

    def alarm(self, text: str) -> None:
        """Tell operators."""
