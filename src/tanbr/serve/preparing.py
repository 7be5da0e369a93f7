"""From a choice to models that are ready to answer: merged, looked over, and if need be chosen again."""

import logging
from dataclasses import replace

from tanbr.serve.admission import Choice
from tanbr.serve.choosing import Choosing, decline
from tanbr.serve.engine import Engine
from tanbr.serve.guard import Guard, Refused, Scrutiny
from tanbr.serve.journal import OpenSlot, Turn
from tanbr.serve.panel import Staged
from tanbr.serve.records import Reason
from tanbr.types import Router, TaskMix

log = logging.getLogger("tanbr.serve")

# How closely the guard looks at a blend: nobody may refuse what others fall back to.
SCRUTINY: dict[Reason, Scrutiny] = {
    reason: "refuse" if reason is Reason.CHOSEN else "measure" if reason in (Reason.START, Reason.BEST) else "sane"
    for reason in Reason
}


class Preparing:
    """Merges what was chosen and has the guard look at it; nothing answers before the learner commits."""

    def __init__(self, engine: Engine, guard: Guard, choosing: Choosing, *, tries: int) -> None:
        """Let the router choose up to `tries` times, if the guard refuses what it chose."""
        self._engine, self._guard, self._choosing, self._tries = engine, guard, choosing, tries

    def prepare(
        self, turn: Turn, choice: Choice, kept: Choice | None, router: Router, mix: TaskMix
    ) -> tuple[list[Staged], OpenSlot]:
        """Prepare the models of the next slot, for a mix (V,).

        What is refused is declined, and the router may choose again; at last what answers is `kept`.
        """
        for chance in range(self._tries, -1, -1):
            try:
                staged = self._merged(choice, mix)
                versions = tuple(one.version for one in staged)
                chosen = choice.blends, choice.decision, choice.reason, choice.note, choice.estimates
                return staged, OpenSlot(turn.next, versions, mix, *chosen)
            except _RefusedModel as refused:
                if choice.decision is None or kept is None:
                    raise refused.why from None
                log.info("a blend is not served: %s", refused.why)
                decline(router, choice.decision)
                why = refused.why  # what the probes have earned teaches all the same
                router.warm_start(refused.staged.blend[None], why.reward[None], why.counts[None])
                if chance > 1:
                    choice = Choice.of(self._choosing.ask(router, mix))
                else:
                    choice = replace(kept, note=f"refused: {refused.why}")
        raise AssertionError("the last chance keeps what answers")

    def _merged(self, choice: Choice, mix: TaskMix) -> list[Staged]:
        """Prepare every model and look it over; if that fails, nothing is prepared."""
        staged: list[Staged] = []
        versions = choice.versions or (None,) * len(choice.blends)
        try:
            for blend, version, own in zip(choice.blends, versions, choice.mixes(mix), strict=True):
                staged.append(self._engine.prepare(blend, version=version))
                if staged[-1].changed:
                    self._guard.inspect(staged[-1], own, scrutiny=SCRUTINY[choice.reason])
        except Refused as why:
            self._engine.discard()
            raise _RefusedModel(staged[-1], why) from None
        except BaseException:
            self._engine.discard()
            raise
        return staged


class _RefusedModel(Exception):  # noqa: N818 - a verdict
    """One of the models was refused."""

    def __init__(self, staged: Staged, why: Refused) -> None:
        super().__init__(str(why))
        self.staged, self.why = staged, why
