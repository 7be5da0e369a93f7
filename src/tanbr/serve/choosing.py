"""What the next slot serves: what an operator pinned, the start blend, or what the router says and admission allows."""

from dataclasses import dataclass

import numpy as np

from tanbr.serve.admission import Admission, Choice, KnownVersion, best_known
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Live
from tanbr.serve.journal import Turn
from tanbr.serve.records import Phase, Reason
from tanbr.serve.start_blend import StartBlend
from tanbr.serve.store import Store
from tanbr.types import Blend, Router, TaskMix


@dataclass(frozen=True, eq=False)
class Pin:
    """What an operator wants served."""

    blend: Blend  # (K,)
    version: int


class Choosing:
    """Chooses before anything is merged."""

    def __init__(self, start: StartBlend, store: Store, config: ServeConfig) -> None:
        self._start, self._store, self._config = start, store, config
        self._admission = Admission(config)

    def phase(self, turn: Turn, pin: Pin | None) -> Phase:
        """Say who chooses: without rewards nothing is learned, so nothing is explored."""
        if pin is not None:
            return Phase.PINNED
        if self._config.explore != "careful":
            return Phase.FIXED if self._config.explore == "never" else Phase.LEARNING
        fresh = turn.rewarded is not None and turn.next - turn.rewarded <= self._config.patience
        return Phase.LEARNING if fresh else Phase.WAITING

    def choose(self, turn: Turn, router: Router, mix: TaskMix, live: Live, pin: Pin | None) -> Choice:
        """Choose a blend for the forecast mix (V,); a decision of the router's that is not served is told NaN."""
        if pin is not None:
            return Choice(pin.blend, Reason.PINNED, "pinned", pin.version)
        phase, known = self.phase(turn, pin), self._known()
        if phase is Phase.WAITING and turn.rewarded is not None and (best := best_known(known, mix)):
            return Choice(best.blend, Reason.BEST, "no rewards any more: the best known blend", best.version)
        if phase is not Phase.LEARNING:
            blend = self._start(mix, live.blend)
            same = live.blend is not None and np.array_equal(blend, live.blend)
            return Choice(blend, Reason.START, f"{phase}: the start blend", live.version if same else None)
        decision = router.ask(mix)
        now = next((one for one in known if one.version == live.version), None)
        if now is None:
            return Choice(decision.blend, Reason.CHOSEN, decision=decision)
        choice = self._admission.admit(decision, router.explain(decision), now, known)
        if choice.decision is None:  # never served: it teaches nothing
            router.tell(decision, np.full(len(mix), np.nan))
        return choice

    def _known(self) -> list[KnownVersion]:
        rows = [row for row in self._store.versions() if row["good"]]
        return [KnownVersion(row["version"], row["blend"], row["sums"], row["counts"]) for row in rows]
