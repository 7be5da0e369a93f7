"""A simulated slot and a served slot are the same slot: the learner that comes out is the same, bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serve.serving import K, V, monitor, service
from tanbr.lab.tasks import tiny
from tanbr.lab.world import Credit, StreamWorld
from tanbr.loop import guard
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.loop.learner import Learner, Rules
from tanbr.loop.slot import Reason
from tanbr.loop.turn import first
from tanbr.merge import Moe
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.serve.engine import Engine
from tanbr.serve.queue import Queue
from tanbr.serve.records import Feedback
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray, Text

OWN, SLOTS, REQUESTS = tuple(range(V)), 5, 48
SPACE = LabelSpace(tiny.TASKS)
PROBES = [row for task in tiny.TASKS for row in tiny.generate(task.name, 8, seed=3_000)]


def stream(seed: int) -> list[list[Row]]:
    """Slots of rows, of a few tasks each; no graded ones, whose rewards show how the texts of a batch were padded."""
    rng, slots, names = np.random.default_rng(seed), [], [task.name for task in tiny.TASKS if not task.graded]
    for number in range(SLOTS):
        tasks = rng.choice(names, p=rng.dirichlet(np.full(len(names), 0.3)), size=REQUESTS).tolist()
        counts = {name: tasks.count(name) for name in dict.fromkeys(tasks)}
        slots.append([row for name, n in counts.items() for row in tiny.generate(name, n, seed=number, split="test")])
    return slots


def router() -> Tanbr:
    return Tanbr(K, V, seed=0, config=RouterConfig().of_requests(OWN))


def feedback(credit: Credit, row: Row, key: str, earned: float) -> Feedback:
    task = SPACE.task(row.task)
    if credit == "rewards":
        return Feedback(key, reward=earned)
    return Feedback(key, task=row.task, label=row.target if task.graded else task.labels[int(row.target)])


class Model:
    """The embedded model as the server runs it."""

    def __init__(self, moe: Moe) -> None:
        self._engine = Engine(moe, blend=np.full(K, 1 / K), version=1, batch=REQUESTS)

    def answer(self, blends: FloatArray, places: NDArray[np.intp], texts: Sequence[Text]) -> list[Answer]:
        """Answer text i with the blend whose number is places[i]."""
        logits = np.zeros((len(texts), len(SPACE.columns)))
        for place in np.unique(places):
            rows = np.flatnonzero(places == place)
            self._engine.swap(blends[place])
            logits[rows] = self._engine.logits([texts[i] for i in rows])
        return list(logits)


def picture(learner: Any, folder: Path) -> dict[str, Any]:
    """All that a learner knows, comparable."""
    learner.router.save(folder / "router")
    learner.monitor.save(folder / "monitor")
    slot = learner.slot
    return {
        "slot": (slot.number, slot.versions, slot.reason, slot.blends.tolist(), slot.estimates.tolist()),
        "mix": (slot.task_mix.tolist(), learner.forecast.tolist()),
        "earned": [(one.number, one.good, one.sums.tolist(), one.counts.tolist()) for one in learner.versions],
        "known": (learner.guard.known.tolist(), {n: of[""].tolist() for n, of in learner.guard.live.items()}),
        "probes": {n: earned.tolist() for n, earned in learner.guard.good.items()},
        "trust": (dict(learner.trust.evidence), dict(learner.trust.led)),
        "course": (learner.rewarded, learner.mark, [one.number for one in learner.settling]),
        "router": (folder / "router").read_bytes(),
        "monitor": (folder / "monitor").read_bytes(),
    }


@pytest.mark.parametrize(
    ("credit", "models", "delay", "alarmed"),
    [
        ("labels", 1, 0, False),
        ("labels", 2, 0, False),
        ("rewards", 1, 0, False),
        ("rewards", 2, 0, False),
        ("rewards", 1, 2, False),  # all come after their slot was told
        ("labels", 2, 2, False),
        ("rewards", 1, 0, True),
        ("labels", 2, 0, True),
    ],
)
def test_a_simulated_and_a_served_slot_give_the_same_learner(
    moe: Moe,
    tmp_path: Path,
    taught: Path,
    monkeypatch: pytest.MonkeyPatch,
    credit: Credit,
    models: int,
    delay: int,
    alarmed: bool,
) -> None:
    settings: dict[str, Any] = {"explore": "careful", "margin": 0.01 if alarmed else 0.1}
    if alarmed:  # by hardly anything
        monkeypatch.setattr(guard, "SIGMAS", 0.0)
        monkeypatch.setattr(guard, "LEAST_COUNT", 2)
    # A slot is one batch, so that sums are taken in one order.
    whole = {"models": models, "batch": REQUESTS, "slot_requests": REQUESTS}
    live = service(tmp_path / "state", taught, router=router(), probes=PROBES, own_experts=OWN, **settings, **whole)
    Queue.start(live)  # the test is the learner's thread
    world = StreamWorld(Model(moe).answer, SPACE, credit=credit, delay=delay, probes=PROBES)
    rules = Rules(LoopConfig.model_validate(settings), StartBlend(None, experts=K, own_experts=OWN), models)
    simulated = first(rules, world, router=router(), monitor=monitor(taught), tasks=V)
    said: list[FloatArray] = []
    reasons, coming = [], [list[Feedback]() for _ in range(delay)]
    for rows in stream(seed=1):
        same(simulated, live.learner, tmp_path)
        simulated, _ = world.play(simulated, rows, lambda _, meant: said.append(meant))
        earned = SPACE.rewards(rows, said[-1]).tolist()
        answered = live.submit([row.text for row in rows]).result(30)
        coming.append([feedback(credit, *one) for one in zip(rows, answered.request_ids, earned, strict=True)])
        live.feedback(coming.pop(0))
        live.learning.step()
        reasons.append(simulated.slot.reason)
    same(simulated, live.learner, tmp_path)
    assert simulated.slot.number == SLOTS
    assert Reason.CHOSEN in reasons
    assert (Reason.ROLLED_BACK in reasons) == alarmed
    live.stop()


def same(simulated: Learner, served: Learner, folder: Path) -> None:
    one, other = picture(simulated, folder), picture(served, folder)
    for name in one:
        assert one[name] == other[name], name
