"""What the tests of the service share: a quick service on the embedded model, and a router that counts."""

import copy
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tanbr.files import write_atomically
from tanbr.lab.corpus import taught_monitor
from tanbr.lab.tasks import tiny
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.monitor import Monitor
from tanbr.router import Terms
from tanbr.serve.config import ServeConfig
from tanbr.serve.records import Feedback
from tanbr.serve.service import Service
from tanbr.tasks.rows import Task
from tanbr.types import Decision, FloatArray, Text

ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 8, seed=11, split="test")]
TEXTS = [row.text for row in ROWS]
K = V = 8
Run = Callable[..., Service]  # the fixture `run`


class Ledger:
    """A router that tries random blends and adds up what it is told: its total must equal what was acknowledged."""

    def __init__(self) -> None:
        self.asked, self.told = 0, 0.0
        self.open: list[Decision] = []

    def ask(self, task_mix: FloatArray) -> Decision:
        blend = np.random.default_rng(self.asked).dirichlet(np.ones(K))
        why = Terms(mean=0.5, uncertainty=0.1)
        self.open.append(Decision(self.asked, np.asarray(task_mix), blend, terms=(why,)))
        self.asked += 1
        return self.open[-1]

    def tell(self, decision: Decision, reward: FloatArray, counts: FloatArray | None = None) -> None:
        (found,) = [one for one in self.open if one.id == decision.id]
        self.open.remove(found)
        self.told += 0.0 if counts is None else float(np.sum(counts))

    def warm_start(self, blends: Any, rewards: Any, counts: Any) -> None:
        self.told += float(np.sum(counts))

    def decline(self, decision: Decision) -> None:
        self.open.remove(next(one for one in self.open if one.id == decision.id))

    def fork(self) -> Self:
        return copy.deepcopy(self)

    expected = np.full((1, V), np.nan)

    def save(self, path: str | Path) -> None:
        waiting = [[one.id, *(x.tolist() for x in (one.task_mix, one.blends, one.estimates))] for one in self.open]
        write_atomically(path, json.dumps([self.asked, self.told, waiting]))

    def resumed(self, path: str | Path) -> "Ledger":
        return self.load(path)

    @classmethod
    def load(cls, path: str | Path) -> "Ledger":
        router = cls()
        router.asked, router.told, waiting = json.loads(Path(path).read_text())
        router.open = [Decision(number, *map(np.array, tables)) for number, *tables in waiting]
        return router


def monitor(folder: Path) -> Monitor:
    """A monitor that has read a little of every task; taught once a folder."""
    path = folder / "monitor.state"
    if not path.exists():
        taught_monitor(seed=0, per_task=30).save(path)
    return Monitor.load(path)


def service(
    state: Path,
    taught: Path,
    *,
    router: Any = None,
    probes: Sequence[Any] = (),
    checkpoint: Any = None,
    own_experts: Sequence[int] = (),
    adopt: bool = False,
    texts: Sequence[Text] = (),
    **settings: Any,
) -> Service:
    """A service of the embedded model whose slots end only by hand, and whose router is asked from the first one on."""
    usual: dict[str, Any] = {"slot_seconds": 3600.0, "workers": 2, "threads": 1, "merge_share": 1.0}
    usual |= {"explore": "always", "hold_back": 0.0, "practice": 0.0}
    usual |= {"answers": "labels", "backend": "torch", "precision": "fp32"}  # logits as the model has them
    config = ServeConfig.model_validate(usual | settings)
    return Service(
        open_moe(checkpoint or embedded.path()),
        tasks=tiny.TASKS,
        config=config,
        state=state,
        router=router,
        monitor=monitor(taught),
        probes=probes,
        own_experts=own_experts,
        texts=texts,
        adopt=adopt,
    )


def answer(live: Service, count: int = 8, *, task: str | None = "sentiment", reward: float = 0.5) -> int:
    """Send texts and feedback on all of them; how many were accepted."""
    answered = live.submit(TEXTS[:count]).result(30)
    return live.feedback([Feedback(i, reward=reward, task=task) for i in answered.request_ids]).accepted


def labelled(live: Service, tasks: Sequence[Task], count: int = 8) -> None:
    """Have so many texts of each task answered, say what is right, and end the slot."""
    rows = [row for task in tasks for row in tiny.generate(task.name, count, seed=12, split="test")]
    ids = live.submit([row.text for row in rows]).result(60).request_ids
    labels = [tiny.BY_NAME[row.task].labels for row in rows]
    truth = [names[int(row.target)] if names else row.target for names, row in zip(labels, rows, strict=True)]
    given = [Feedback(i, task=row.task, label=said) for i, row, said in zip(ids, rows, truth, strict=True)]
    assert live.feedback(given).accepted == len(rows)
    live.end_slot()


def told(live: Service) -> float:
    """How much a ledger was told."""
    router: Any = live.learner.router
    return float(router.told)


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for something that another thread does; a busy machine takes its time."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.01)
