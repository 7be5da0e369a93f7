"""Situation i of the paper, measured: loss while norms are tuned (Fig. 2), time, figures per task (Table II).

Figures are on rows that no training has seen, before and after. With `tags` each task is answered by its own expert;
`even` answers every task with what is chosen for a mix of all alike, `own` with what is chosen for the task alone.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tanbr.errors import CheckpointError, ConfigError
from tanbr.files import write_atomically
from tanbr.lab.corpus import Progress, Rows
from tanbr.lab.gates import Gated, Reinforce, Smear, Switch
from tanbr.lab.rivals import ROUTERS, build
from tanbr.lab.rivals.fisher import fisher
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.rivals.regmean import regmean
from tanbr.lab.train.checkpoints import Figures, as_trained, digest, load, own_experts, write
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.finetune import BlendTuner, GatedTuner, MergedTuner, ServedTuner, Tuner, finetune, norms
from tanbr.lab.train.objectives import Batches, Objective, objective_of
from tanbr.merge import open as open_moe
from tanbr.merge.methods import check_name
from tanbr.moe.device import device_of, finish
from tanbr.moe.text import TextEncoder
from tanbr.router.config import RouterConfig
from tanbr.serve.dense import with_start
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Task
from tanbr.types import Blend, FloatArray, to_jsonable

SERVED = "served"  # draws around the blends that will be served
AVERAGE = "average"  # how blends are merged, unless a name says otherwise, as served+regression does
GATES: dict[str, type[Gated]] = {"switch": Switch, "rl": Reinforce, "smear": Smear}
MERGES: dict[str, Callable[..., Any]] = {"fisher": fisher, "regmean": regmean}  # no blends, so no router
PROBE_ROWS = 64  # a task, for a merge that needs data
ALPHA = 0.3  # a step's task mix is a draw from Dirichlet(α): as even as the mixes of simulated traffic


def check(router: str) -> str:
    """Refuse a router that is not known."""
    name, _, method = router.partition("+")
    if name not in (*ROUTERS, SERVED, *GATES, *MERGES):
        known = ", ".join((*ROUTERS, SERVED, *GATES, *MERGES))
        raise ConfigError(f"unknown router {router!r}; choose one of {known}")
    if router != name and name not in (*ROUTERS, SERVED):
        raise ConfigError(f"router {router!r}: a merge method may follow {', '.join((*ROUTERS, SERVED))}, none else")
    check_name(method or AVERAGE)
    return router


def untuned(
    checkpoint: Path, *, tasks: tuple[Task, ...], unseen: Rows, tuning: Tuning, tagged: bool = False
) -> dict[str, Figures]:
    """Measure the MoE with tags and the uniform merge, both as they are."""
    objective = _objective(load(checkpoint).config, checkpoint, tasks, tuning, tagged=tagged)
    return as_trained(checkpoint, objective, _few(unseen, tasks, tuning.eval_rows), device=tuning.device)


def run(
    checkpoint: Path,
    router: str,
    *,
    tasks: tuple[Task, ...],
    rows: Rows,
    unseen: Rows,
    tuning: Tuning,
    choosing: RouterConfig,
    out: Path,
    report: Progress,
    command: str,
    tagged: bool = False,
    also: Callable[[Tuner, Objective], Any] | None = None,
) -> dict[str, Any]:
    """Tune norms on `rows` while a router or gates learn, and measure on `unseen` rows; all goes to `out`/router.

    What `also` makes of the tuned tuner is part of the result, before anything is asked of it or put back.
    """
    folder, V = out / check(router), len(tasks)
    mixes = np.random.default_rng(tuning.seed).dirichlet(np.full(V, ALPHA), tuning.steps)
    tuner = _tuner(checkpoint, router, tasks=tasks, rows=rows, mixes=mixes, tuning=tuning, choosing=choosing)
    device = with_start(tuner.model).device
    objective = _objective(tuner.model.config, checkpoint, tasks, tuning, tagged=tagged)
    batches = Batches(_few(rows, tasks, tuning.train_rows), objective=objective, seed=tuning.seed, device=device)
    measured = _few(unseen, tasks, tuning.eval_rows)
    before = [weight.detach().clone() for weight in tuner.norms]
    folder.mkdir(parents=True, exist_ok=True)
    ticks: list[float] = []

    def step(phase: str, done: int, total: int, loss: float) -> None:
        finish(device)
        ticks.append(time.perf_counter())
        report(f"{phase} {router}", done, total, f"loss {loss:.3f}")

    finetune(
        tuner, batches, mixes, objective=objective, config=tuning, state=folder / "tuned.state", report=step,
        origin=digest(checkpoint),
    )  # fmt: skip
    more = {} if also is None else {"also": also(tuner, objective)}
    report(f"figures {router}", 0, 1, "")
    blends = [tuner.choose(mix) for mix in (np.full(V, 1 / V), *np.eye(V))]
    figures = {f"tuned {kind}": value for kind, value in _measure(tuner, objective, measured, blends).items()}
    tuned = [weight.detach().clone() for weight in tuner.norms]
    _set(tuner, before)
    figures |= {f"untuned {kind}": value for kind, value in _measure(tuner, objective, measured, blends).items()}
    _set(tuner, tuned)
    report(f"figures {router}", 1, 1, "")
    _write(tuner, checkpoint, folder)
    result = {
        "command": command,
        "router": router,
        "config": tuning.model_dump(),
        "router_config": choosing.model_dump(mode="json", exclude_defaults=True),
        "seconds_per_step": float(np.median(np.diff(ticks))) if len(ticks) > 1 else None,
        "rows_a_task": tuning.eval_rows,
        "blends": blends,
        "figures": figures,
        **more,
    }
    write_atomically(folder / "finetune.json", json.dumps(to_jsonable(result), indent=1) + "\n")
    return result


def _few(rows: Rows, tasks: Sequence[Task], count: int) -> Rows:
    return {task.name: rows[task.name][:count] for task in tasks}


def _objective(config: Any, checkpoint: Path, tasks: tuple[Task, ...], tuning: Tuning, *, tagged: bool) -> Objective:
    encoder = TextEncoder.of(checkpoint, vocab_size=config.vocab_size, max_length=tuning.max_length)
    return objective_of(config, LabelSpace(tasks), encoder, tagged=tagged)


def _tuner(
    checkpoint: Path,
    router: str,
    *,
    tasks: tuple[Task, ...],
    rows: Rows,
    mixes: FloatArray,
    tuning: Tuning,
    choosing: RouterConfig,
) -> Tuner:
    """Build what is tuned."""
    name, _, method = router.partition("+")
    if name in GATES:
        return GatedTuner(GATES[name](load(checkpoint).to(device_of(tuning.device)), seed=tuning.seed))
    moe, names = open_moe(checkpoint, method=method or AVERAGE, device=tuning.device), [task.name for task in tasks]
    own = own_experts(moe, names)
    if name in ROUTERS:
        settings = choosing.of_requests(own)
        return MergedTuner(moe, build(name, moe.num_experts, len(tasks), seed=tuning.seed, config=settings), mixes)
    if not own:
        raise CheckpointError(
            f"{checkpoint} does not say in its tanbr.json which of its {moe.num_experts} experts was trained for each "
            f"of {', '.join(names)}, and {name} needs to know; choose another router"
        )
    if name == SERVED:
        return ServedTuner(moe, own=own)
    probes = probes_of(moe, _few(rows, tasks, PROBE_ROWS), space=LabelSpace(tasks), own=own)
    return Tuner(MERGES[name](moe, probes))


def _measure(tuner: Tuner, objective: Objective, rows: Rows, blends: Sequence[Blend | None]) -> dict[str, Figures]:
    """Score all tasks with the first blend, and each with its own of the others."""
    tuner.settle(blends[0])
    even = objective.figures(tuner.model, rows)
    if not isinstance(tuner, BlendTuner):  # gates and fixed merges do not depend on the mix
        return {"even": even, "own": even}
    own: Figures = {}
    for blend, (name, of_task) in zip(blends[1:], rows.items(), strict=True):
        tuner.settle(blend)
        own |= objective.figures(tuner.model, {name: of_task})
    return {"even": even, "own": own}


@torch.no_grad()
def _set(tuner: Tuner, values: Sequence[torch.Tensor]) -> None:
    for weight, value in zip(tuner.norms, values, strict=True):
        weight.copy_(value)


def _write(tuner: Tuner, checkpoint: Path, folder: Path) -> None:
    """Write the MoE with its tuned norms (and gates) and the router that belongs to it; a fixed merge as it is."""
    if (folder / "model").exists():
        return
    moe = load(checkpoint)
    if isinstance(tuner, BlendTuner):
        moe.load_state_dict({name: weight.detach() for name, weight in norms(tuner.model).items()}, strict=False)
        if isinstance(tuner, MergedTuner):
            tuner.router.save(folder / "router.state")
        write(moe, folder / "model", checkpoint, card=read_card(checkpoint))
    else:
        write(tuner.model, folder / "model", checkpoint)
