"""The runs behind Fig. 4 and 5: every method on the same untagged requests, with a fixed and with a moving mix."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tanbr.lab.paper.claim import Results
from tanbr.lab.paper.job import Job, Tick
from tanbr.lab.paper.setup import Setup
from tanbr.lab.simulate import Study, play
from tanbr.types import FloatArray

OURS = {"paper": "Algorithm 1 as printed", "tanbr": "this project's default mode"}
RIVALS = ("nucb", "regmean", "fisher", "average")
METHODS = (*OURS, *RIVALS)
TRAFFIC = {"fixed": "fixed", "dynamic": "dirichlet"}  # the paper's word → ours


def jobs(setup: Setup, mixes: Sequence[str] = tuple(TRAFFIC)) -> list[Job]:
    """Make one job for each mix, method and seed."""
    scale = setup.scale
    sizes = {"slots": scale.slots + scale.after, "requests": scale.requests, "pool": scale.pool}
    facts = {"model": setup.name_of("model"), "data": setup.data_name, **sizes}
    return [
        Job(
            f"online-{mix}-{method}-seed{seed}",
            partial(_play, setup, mix, method, seed),
            {**facts, "mix": mix, "method": method, "seed": seed},
        )
        for mix in mixes
        for method in METHODS
        for seed in scale.seeds
    ]


def _play(setup: Setup, mix: str, method: str, seed: int, tick: Tick) -> dict[str, Any]:
    scale = setup.scale
    study = Study(
        setup.bert_moe.path, data=setup.data, traffic=TRAFFIC[mix], slots=scale.slots + scale.after,
        requests=scale.requests, pool=scale.pool,
    )  # fmt: skip
    done = play(
        study, setup.bench, seed, method,
        lambda _, name, slots, reward: tick(slots, study.slots, f"{name}, {mix}: reward {reward:.3f}"),
    )  # fmt: skip
    return {
        "rewards": np.round([record.total_reward for record in done.records], 4),
        "figures": dict(zip([task.name for task in setup.tasks], np.round(done.figures, 4), strict=True)),
    }


def rewards(setup: Setup, results: Results, mix: str, method: str) -> FloatArray:
    """Give each seed's reward by slot (seeds, T)."""
    return np.array([results[f"online-{mix}-{method}-seed{seed}"]["rewards"] for seed in setup.scale.seeds])


def after(setup: Setup, results: Results, mix: str, method: str) -> FloatArray:
    """Give each seed's mean reward once learning is over (seeds,)."""
    mean: FloatArray = rewards(setup, results, mix, method)[:, setup.scale.slots :].mean(axis=1)
    return mean
