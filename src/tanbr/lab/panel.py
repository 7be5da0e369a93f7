"""Several merged models side by side: a panel of G blends, each request to the one that serves it best.

Whoever can fill a panel is a `PanelRouter`: asked with the number of models, it says which blends to hold and how a
request's posterior decides among them. It is told rewards by (model, task).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tanbr.errors import InputError
from tanbr.lab.answers import Answers
from tanbr.lab.contestant import Answering, MixSource, Scorer, as_given
from tanbr.merge import Moe
from tanbr.monitor.belief import by_mix
from tanbr.router.panel import Readings
from tanbr.tasks.metrics import Answer
from tanbr.types import Blend, FloatArray, SlotRecord, TaskMix, Text, as_blend, as_task_mix

LEAST_SHARE = 1e-3  # of a task in the mix that posteriors are weighed by: what is not forecast may still come


class PanelChoice(Protocol):
    """What a router chose for one slot."""

    @property
    def blends(self) -> FloatArray:
        """The blends to hold (G, K)."""
        ...

    def assign(self, posteriors: FloatArray) -> NDArray[np.intp]:
        """Choose a model for each request (n,) by its posterior over the tasks (n, V)."""
        ...


class PanelRouter(Protocol):
    """Chooses G blends for a task mix, and learns from the rewards of each."""

    def ask(self, task_mix: ArrayLike, *, models: int, confusion: ArrayLike | None = None) -> PanelChoice:
        """Choose `models` blends for a slot whose task mix is ψ (V,), its requests read as `confusion` (V, V) says."""
        ...

    def tell(self, decision: Any, reward: ArrayLike, counts: ArrayLike) -> None:
        """Learn from the rewards (G, V), NaN where a model saw no request of a task, and the counts (G, V)."""
        ...


@dataclass(frozen=True, eq=False)
class KnownPanel:
    """Blends whose worth to every task is known."""

    blends: FloatArray  # (G, K)
    worth: FloatArray  # (G, V)
    task_mix: TaskMix  # (V,)

    def assign(self, posteriors: FloatArray) -> NDArray[np.intp]:
        """Send each request to argmax_g Σ_v p(v | text) r_v(x_g), the posterior (n, V) re-weighted by the mix."""
        return ((posteriors * np.maximum(self.task_mix, LEAST_SHARE)) @ self.worth.T).argmax(axis=1)


class BestPanel:
    """The best panel among blends (N, K) whose rewards (N, V) are known: of every slot's mix, or of one for ever."""

    def __init__(self, blends: FloatArray, rewards: FloatArray, *, mix: ArrayLike | None = None) -> None:
        self._blends, self._rewards = blends, rewards
        self._mix = None if mix is None else as_task_mix(mix, tasks=rewards.shape[1])

    def ask(self, task_mix: ArrayLike, *, models: int, confusion: ArrayLike | None = None) -> KnownPanel:
        """Choose the panel; requests are assigned by the slot's own mix in any case."""
        mix = as_task_mix(task_mix, tasks=self._rewards.shape[1])
        readings = Readings.of(mix if self._mix is None else self._mix, confusion)
        best = best_rows(readings.bound(self._rewards), readings.mix, models)
        return KnownPanel(self._blends[best], self._rewards[best], mix)

    def tell(self, decision: Any, reward: ArrayLike, counts: ArrayLike) -> None:
        """Learn nothing."""


def best_rows(rewards: FloatArray, mix: TaskMix, count: int) -> list[int]:
    """Find the rows R of rewards (N, V) with the highest Σ_v ψ_v max_{n∈R} r_nv: greedily, then by exchange."""
    if not 1 <= count <= len(rewards):
        raise InputError(f"a panel of known blends holds 1 to {len(rewards)} of them (got {count})")

    def best_beside(rows: list[int]) -> tuple[int, float]:
        rest = rewards[rows].max(axis=0) if rows else np.zeros(len(mix))  # no reward is below 0
        worth = np.maximum(rest, rewards) @ mix
        worth[rows] = -np.inf
        return int(worth.argmax()), float(worth.max())

    chosen: list[int] = []
    value = 0.0
    for _ in range(count):
        row, value = best_beside(chosen)
        chosen.append(row)
    better = True
    while better:
        better = False
        for place in range(count):
            others = chosen[:place] + chosen[place + 1 :]
            row, worth = best_beside(others)
            if worth > value + 1e-12:  # a real gain, so that this ends
                chosen[place], value, better = row, worth, True
    return chosen


def memory(moe: Moe, models: int) -> int:
    """Bytes, in float32, of `models` merged models that share all but their FFNs; K of them hold what the MoE holds."""
    whole, own = (sum(int(np.prod(piece.shape)) for piece in some) for some in (moe.plan.pieces, moe.plan.blended))
    return 4 * (whole + (models - 1) * own)


def as_panel(blends: ArrayLike, *, experts: int) -> list[Blend]:
    """Check that `blends` are (G, K), each a blend and no two alike."""
    panel = [as_blend(blend, experts=experts) for blend in np.atleast_2d(np.array(blends, dtype=np.float64))]
    if not 1 <= len(panel) <= experts:
        raise InputError(f"a panel must hold 1 to {experts} blends, as many as there are experts (got {len(panel)})")
    if len({blend.tobytes() for blend in panel}) < len(panel):
        raise InputError("a panel must hold different blends (got one twice); ask for fewer models")
    return panel


class PanelServer:
    """A method's own view of the answers: the panel that its router chose last."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._panel: list[Blend] = []
        self.version = 0

    def swap(self, blends: ArrayLike) -> int:
        """Hold these blends (G, K) from now on; how many have been merged so far: those that stay cost nothing."""
        wanted = as_panel(blends, experts=self._answers.experts)
        held = {blend.tobytes() for blend in self._panel}
        self.version += sum(blend.tobytes() not in held for blend in wanted)
        self._panel = wanted
        return self.version

    def answers(self, texts: Sequence[Text], models: NDArray[np.intp]) -> list[Answer]:
        """Answer each text with its model (n,)."""
        if len(models) != len(texts) or (models < 0).any() or (models >= len(self._panel)).any():
            raise InputError(f"every request must be assigned to one of {len(self._panel)} models (got {models})")
        return self._answers.each(self._panel, models, texts)


@dataclass(frozen=True, eq=False)
class PanelRecord(SlotRecord):
    """One slot of a panel; `blend` is the mean of its blends, weighted by the requests they served."""

    blends: FloatArray  # (G, K)
    shares: FloatArray  # (G,) of the requests


@dataclass
class SeveralModels:
    """A router that serves G merged models; the counterpart of `contestant.OneModel`."""

    server: PanelServer
    router: PanelRouter
    monitor: MixSource
    tasks: int
    models: int  # G
    answering: Answering = as_given
    slot: int = 0
    forecast: TaskMix = field(init=False)

    def __post_init__(self) -> None:
        self.forecast = np.full(self.tasks, 1.0 / self.tasks)

    def play(self, texts: Sequence[Text], scorer: Scorer) -> PanelRecord:
        """Serve one slot's requests, each by the model it is assigned to, and learn from the rewards of each model."""
        decision = self.router.ask(self.forecast, models=self.models, confusion=self.monitor.confusion)
        version = self.server.swap(decision.blends)
        posteriors = self.monitor.observe(texts)  # (n, V)
        of = np.asarray(decision.assign(posteriors))  # (n,)
        given = self.answering(self.server.answers(texts, of), by_mix(posteriors, self.forecast))
        rewards = scorer.rewards(given)
        by_model = [scorer.by_task(rewards, of == g) for g in range(len(decision.blends))]
        self.router.tell(decision, *(np.array(table) for table in zip(*by_model, strict=True)))  # (G, V) each
        reward, counts = scorer.by_task(rewards)
        shares = np.bincount(of, minlength=len(decision.blends)) / max(1, len(of))
        record = PanelRecord(
            self.slot, version, self.forecast, shares @ decision.blends, reward, counts, decision.blends, shares
        )
        self.forecast = self.monitor.close_slot().forecast
        self.slot += 1
        return record
