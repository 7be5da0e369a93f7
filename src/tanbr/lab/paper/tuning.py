"""The runs behind Fig. 2, 3, 7 and Table II: a T5-MoE's norms are tuned while a router learns, then it serves.

What was tuned is put before a stream of untagged requests, with neither model nor router learning any more. Answers
are written, and scored as written.
"""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tanbr.errors import CheckpointError
from tanbr.lab.compare import compare
from tanbr.lab.jobs import Job, Tick
from tanbr.lab.paper.claim import OURS
from tanbr.lab.paper.setup import Setup
from tanbr.lab.paper.table1 import work_time
from tanbr.lab.rivals import FixedBlend
from tanbr.lab.simulate import Answered
from tanbr.lab.tasks import traffic
from tanbr.lab.tasks.traffic import Traffic
from tanbr.lab.train import finetune
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.finetune import MergedTuner, Tuner
from tanbr.lab.train.objectives import Objective, TextToText
from tanbr.lab.train.run import Curve
from tanbr.lab.world import Contestant, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.monitor.config import MonitorConfig
from tanbr.router.config import PaperModeConfig, RouterConfig
from tanbr.tasks.metrics import Answer
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray, Text

RIVALS = {"nucb": "NUCB", "rl": "RL", "switch": "Switch", "smear": "SMEAR"}
ROUTERS = (*OURS, *RIVALS)
SERVED_SEED = 7_000  # of the stream after tuning
PERIOD = 4  # slots from one drawn mix of that stream to the next, so that all tasks come


def jobs(setup: Setup) -> list[Job]:
    """Make one job for each router and seed."""
    return [job(setup, router, seed) for router in ROUTERS for seed in setup.scale.seeds]


def job(setup: Setup, router: str, seed: int, *, name: str = "", serve: bool = True, **paper_mode: float) -> Job:
    """Tune with a router and seed, Algorithm 1 with other constants if some are given; then serve, unless told not."""
    tuning = setup.scale.tuning.model_copy(update={"seed": seed} if serve else {"seed": seed, "eval_rows": 2})
    called = f"tuning-{name or router}-seed{seed}"
    facts = {
        "model": setup.name_of("t5"),
        "data": setup.data_name,
        "tagged": setup.tagged,
        "tuning": tuning.model_dump(exclude={"device"}),
        "slots": setup.scale.served_slots if serve else 0,
        "requests": setup.scale.requests,
        "least_answers": setup.scale.least_answers,
        **paper_mode,
        **setup.timed_on,
    }
    tuning = tuning.model_copy(update={"device": setup.device})
    choosing = RouterConfig(paper=PaperModeConfig.model_validate(paper_mode))
    run = partial(_tune, setup, router, tuning, choosing, setup.out / "work" / called, serve)
    return Job(called, run, facts)


def _tune(
    setup: Setup, router: str, tuning: Tuning, choosing: RouterConfig, out: Path, serve: bool, tick: Tick
) -> dict[str, Any]:
    rows, unseen = setup.tuning_rows
    steps = tuning.steps
    ticks: list[float] = []

    def report(phase: str, done: int, _: int, note: str) -> None:
        if phase.startswith("finetune"):
            ticks.append(work_time(setup.t5_moe.device))
        tick(min(done, steps), steps + 1, f"{phase} {note}")

    found = finetune.run(
        setup.t5_moe.path, router, tasks=setup.tasks, rows=rows, unseen=unseen, tuning=tuning, choosing=choosing,
        out=out, report=report, command="tanbr reproduce", tagged=setup.tagged,
        also=partial(_serve, setup, tuning.seed) if serve else None,
    )  # fmt: skip
    at, losses = Curve(out / router / "tuned.state").series("batch")
    seconds = float(np.median(np.diff(ticks))) if len(ticks) > 1 else None
    return {
        "steps": list(at), "losses": np.round(losses, 4), "seconds_per_step": seconds,
        "served": found.get("also"),
    }  # fmt: skip


class TunedServer:
    """A tuned tuner that writes its answers; texts name their task if it was tuned so."""

    def __init__(self, tuner: Tuner, objective: TextToText, row_of: Mapping[Text, Row], *, batch: int) -> None:
        self._tuner, self._objective, self._row_of, self._batch = tuner, objective, row_of, batch
        self._device = tuner.model.device
        self.answer_seconds: list[float] = []  # of each whole batch, as `work_time` counts
        self.merge_seconds: list[float] = []

    def respond(self, blends: FloatArray, _: NDArray[np.intp], texts: Sequence[Text]) -> list[Answer]:
        """Merge the one blend (1, K), where there is one to merge, and write an answer to each text."""
        started = work_time(self._device)
        self._tuner.settle(blends[0])
        self.merge_seconds.append(work_time(self._device) - started)
        found: list[Answer] = []
        for start in range(0, len(texts), self._batch):
            rows = [self._row_of[text] for text in texts[start : start + self._batch]]
            batch = self._objective.encode(rows).to(self._device)
            started = work_time(self._device)
            with torch.inference_mode():
                found += self._objective.written(self._tuner.model, batch)
            if len(rows) == self._batch:
                self.answer_seconds.append(work_time(self._device) - started)
        return found


def _serve(setup: Setup, seed: int, tuner: Tuner, objective: Objective) -> dict[str, Any]:
    """Let what was tuned answer a stream whose mix moves."""
    if not isinstance(objective, TextToText):
        raise CheckpointError(f"{setup.t5_moe.path} answers by a head; --t5 must name a T5-MoE, which writes")
    scale, corpus = setup.scale, setup.corpus
    mixes = traffic.mixes(
        "dirichlet", tasks=len(corpus.tasks), slots=scale.served_slots, seed=SERVED_SEED + seed, period=PERIOD
    )
    stream = Traffic(pools=corpus.stream, mixes=mixes, requests=scale.requests, seed=SERVED_SEED + seed)
    row_of = {row.text: row for rows in corpus.stream.values() for row in rows}
    server = TunedServer(tuner, objective, row_of, batch=min(32, scale.requests))
    K, V = setup.t5_moe.num_experts, len(corpus.tasks)
    router: Any = tuner.router if isinstance(tuner, MergedTuner) else FixedBlend(K, V)
    monitor = corpus.taught_monitor(MonitorConfig(), seed=seed)
    world = StreamWorld(server.respond, corpus.space, delay=scale.served_slots + 1)  # no reward comes in time to teach
    contestant = Contestant(world, router, monitor, start=StartBlend("even", experts=K))
    answered = Answered(corpus.tasks)
    result = compare({"tuned": contestant}, stream, best="tuned", collect=answered)
    return {
        "reward": float(result.rewards("tuned").mean()),
        "figures": answered.figures(least=scale.least_answers),
        "answer_seconds": statistics.median(server.answer_seconds),
        "merge_seconds": statistics.median(server.merge_seconds) if isinstance(tuner, MergedTuner) else 0.0,
        "parameters": sum(weight.numel() for weight in tuner.model.parameters()),
    }
