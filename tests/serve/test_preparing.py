from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tanbr.serve.admission import Choice
from tanbr.serve.guard import Refused
from tanbr.serve.journal import Turn
from tanbr.serve.panel import Staged
from tanbr.serve.preparing import Preparing
from tanbr.serve.records import Reason
from tanbr.types import PanelDecision

MIX = np.array([0.75, 0.25])
GOOD, BAD = np.array([1.0, 0.0]), np.array([0.0, 1.0])
ESTIMATES = np.array([[0.9, 0.1], [0.2, 0.8]])
KEPT = Choice.one(GOOD, Reason.KEPT, version=4)


class Engine:
    """Numbers what is prepared; nothing is merged."""

    def __init__(self) -> None:
        self.prepared: list[Staged] = []

    def prepare(self, blend: Any, *, version: int | None = None) -> Staged:
        self.prepared.append(Staged(None, version or 10 + len(self.prepared), blend, changed=version is None))
        return self.prepared[-1]

    def discard(self) -> None:
        self.prepared = []


class Guard:
    """Refuses BAD, and remembers the mixes that it was asked to judge by."""

    def __init__(self) -> None:
        self.mixes: list[Any] = []

    def inspect(self, staged: Staged, mix: Any, *, scrutiny: str) -> None:
        self.mixes.append(mix)
        if np.array_equal(staged.blend, BAD):
            raise Refused("it is bad", np.array([0.1, np.nan]), np.array([8.0, 0.0]))


class Router:
    def __init__(self) -> None:
        self.asked, self.told, self.taught = 0, list[Any](), list[Any]()

    def ask(self, mix: Any, *, models: int, confusion: Any = None) -> PanelDecision:
        self.asked += 1
        return PanelDecision(self.asked, mix, np.array([GOOD, BAD]), ESTIMATES)

    def tell(self, decision: Any, reward: Any) -> None:
        self.told.append((decision.id, reward))

    def warm_start(self, blends: Any, rewards: Any, counts: Any) -> None:
        self.taught.append((blends, rewards, counts))


def made(tries: int = 3) -> tuple[Preparing, Engine, Guard, Router]:
    engine, guard, router = Engine(), Guard(), Router()
    choosing = SimpleNamespace(ask=lambda router, mix: router.ask(mix, models=2))
    return Preparing(engine, guard, choosing, tries=tries), engine, guard, router  # type: ignore[arg-type]


def test_every_model_is_judged_by_the_mix_of_its_own_tasks() -> None:
    preparing, _, guard, router = made()
    choice = Choice.panel(np.array([GOOD, [0.5, 0.5]]), ESTIMATES, Reason.START)
    staged, opened = preparing.prepare(Turn(None, 0), choice, None, router, MIX)  # type: ignore[arg-type]
    assert [one.version for one in staged] == list(opened.versions) == [10, 11]
    np.testing.assert_array_equal(guard.mixes, np.eye(2))
    np.testing.assert_array_equal(opened.task_models, [0, 1])


def test_a_refused_panel_is_declined_its_probes_teach_and_the_router_chooses_again_until_what_answers_stays() -> None:
    preparing, engine, _, router = made(tries=2)
    first = Choice.of(router.ask(MIX, models=2))
    staged, opened = preparing.prepare(Turn(None, 0), first, KEPT, router, MIX)  # type: ignore[arg-type]
    assert [told[0] for told in router.told] == [1, 2]
    assert np.isnan(router.told[0][1]).all()
    blends, rewards, counts = router.taught[0]  # of the bad model alone
    np.testing.assert_array_equal(blends, [BAD])
    np.testing.assert_array_equal(rewards, [[0.1, np.nan]])
    np.testing.assert_array_equal(counts, [[8.0, 0.0]])
    assert (opened.versions, opened.reason, opened.note) == ((4,), Reason.KEPT, "refused: it is bad")
    assert engine.prepared == staged  # what was refused is not prepared any more


def test_what_nobody_chose_is_refused_aloud() -> None:
    preparing, engine, _, router = made()
    with pytest.raises(Refused, match="it is bad"):
        preparing.prepare(Turn(None, 0), Choice.one(BAD, Reason.START), KEPT, router, MIX)  # type: ignore[arg-type]
    assert engine.prepared == []
