"""What the next slot serves: what an operator pinned, the start blend, or what the router says and admission allows."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tanbr.router.panel import Readings
from tanbr.serve.admission import Admission, Choice, KnownVersion, best_known, best_panel
from tanbr.serve.config import ServeConfig
from tanbr.serve.journal import Turn
from tanbr.serve.records import Phase, Reason
from tanbr.serve.start_blend import StartBlend
from tanbr.serve.store import Store
from tanbr.types import Blend, Decision, FloatArray, Router, TaskMix


@dataclass(frozen=True, eq=False)
class Pin:
    """What an operator wants served."""

    blend: Blend  # (K,)
    version: int


def decline(router: Router, decision: Decision) -> None:
    """Take back a decision that is not served: told NaN alone, it leaves no trace in the router."""
    router.tell(decision, np.full(decision.estimates.shape, np.nan))


class Choosing:
    """Chooses before anything is merged."""

    def __init__(
        self,
        start: StartBlend,
        store: Store,
        config: ServeConfig,
        *,
        models: int = 1,
        confusion: Callable[[], FloatArray | None] = lambda: None,
    ) -> None:
        """Choose up to G blends to serve side by side; `confusion` tells how each task's requests are read (V, V)."""
        self._start, self._store, self._config, self._models = start, store, config, models
        self._confusion = confusion
        self._admission = Admission(config)

    def phase(self, turn: Turn, pin: Pin | None) -> Phase:
        """Say who chooses: without rewards nothing is learned, so nothing is explored."""
        if pin is not None:
            return Phase.PINNED
        if self._config.explore != "careful":
            return Phase.FIXED if self._config.explore == "never" else Phase.LEARNING
        fresh = turn.rewarded is not None and turn.next - turn.rewarded <= self._config.patience
        return Phase.LEARNING if fresh else Phase.WAITING

    def choose(self, turn: Turn, router: Router, mix: TaskMix, kept: Choice | None, pin: Pin | None) -> Choice:
        """Choose for the forecast mix (V,), where `kept` would serve on what answers.

        A decision of the router's that is not served is declined.
        """
        if pin is not None:
            return Choice.one(pin.blend, Reason.PINNED, "pinned", pin.version)
        phase, known = self.phase(turn, pin), self._known()
        if phase is Phase.WAITING and turn.rewarded is not None and (best := self._best(known, mix)):
            return best
        if phase is not Phase.LEARNING:
            return self._start_choice(phase, mix, kept)
        decision = self.ask(router, mix)
        now = [one for one in known if kept is not None and one.version in kept.versions]
        if kept is None or len(now) < len(kept.blends):
            return Choice.of(decision)
        choice = self._admission.admit(decision, decision.why.bound, now, known, kept)
        if choice.decision is None:
            decline(router, decision)
        return choice

    def ask(self, router: Router, mix: TaskMix) -> Decision:
        """Ask for a blend, or for as many as are served side by side."""
        if self._models == 1:
            return router.ask(mix)
        return router.ask(mix, models=self._models, confusion=self._confusion())

    def _best(self, known: list[KnownVersion], mix: TaskMix) -> Choice | None:
        if self._models > 1:
            return best_panel(known, mix, self._models)
        best = best_known(known, mix)
        if best is None:
            return None
        return Choice.one(best.blend, Reason.BEST, "no rewards any more: the best known blend", best.version)

    def _start_choice(self, phase: Phase, mix: TaskMix, kept: Choice | None) -> Choice:
        """Serve what needs no reward; the blends that answer already keep their numbers."""
        note = f"{phase}: the start blend"
        if self._models == 1:
            choice = Choice.one(self._start(mix, None if kept is None else kept.blend), Reason.START, note)
        else:
            served = np.empty((0, 0)) if kept is None else kept.blends
            readings = Readings.of(mix, self._confusion())
            choice = Choice.panel(*self._start.panel(readings, served, models=self._models), Reason.START, note)
        old = {} if kept is None else dict(zip((x.tobytes() for x in kept.blends), kept.versions, strict=True))
        return replace(choice, versions=tuple(old.get(blend.tobytes()) for blend in choice.blends))

    def _known(self) -> list[KnownVersion]:
        rows = [row for row in self._store.versions() if row["good"]]
        return [KnownVersion(row["version"], row["blend"], row["sums"], row["counts"]) for row in rows]
