"""Task-routed training: every task trains its own copy of a dense ancestor's FFNs.

The ancestor may learn all tasks first (`train_together`): nobody tells a merged model a request's task, and what
routing told the experts while they trained, their blends cannot know, unless the ancestor has learnt to recognise it.
The experts of all sites start equal, which is what makes blends of them meaningful; what they share (embeddings,
attention, norms, head) goes on learning at a rate of its own. A step takes a batch of every task, one after the other,
and moves all weights once.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tanbr.tasks.rows import Row
from tanbr.train.batches import Batches
from tanbr.train.checkpoints import digest, load, write
from tanbr.train.config import PretrainConfig
from tanbr.train.early_stop import EarlyStop
from tanbr.train.objectives import Batch, Objective
from tanbr.train.run import Report, Run
from tanbr.train.task_experts import TaskExperts

_EXPERTS_ALONE = frozenset(
    ("ancestor_steps", "steps", "expert_rate", "shared_rate", "look_every", "look_rows", "patience", "final_rows")
)  # settings that do not change what an ancestor learns; at its constant rate, not even the number of its steps does
_HEAD = re.compile(r"^(classifier|bert\.pooler)\.")
_EMBEDDINGS = re.compile(r"(^|\.)(embeddings|shared|embed_tokens|lm_head)\.")
_LAYER = re.compile(r"(?:^|\.)encoder\.(?:layer|block)\.(\d+)\.")


def batch_sizes(rows: Mapping[str, Sequence[Row]], config: PretrainConfig) -> list[int]:
    """Give a task with n times the rows of the smallest n**batch_growth times its share of a step, or `task_rows`."""
    least = min(map(len, rows.values()))
    return [
        config.task_rows.get(name, round(config.batch * (len(of_task) / least) ** config.batch_growth))
        for name, of_task in rows.items()
    ]


def train_together(
    dense: Path,
    batches: Batches,
    *,
    objective: Objective,
    config: PretrainConfig,
    out: Path,
    report: Report,
    workers: int,
) -> Path:
    """Train a dense checkpoint on all tasks at once, for `ancestor_steps`, and write it to `out`."""
    tasks = objective.space.tasks
    one = TaskExperts(load(dense), experts=1)
    pool = ThreadPoolExecutor(workers)

    def gradients(step: int) -> dict[str, float]:
        losses = [(0, partial(_share, objective, batches.of(v, step))) for v in range(len(tasks))]
        values = one.backward(losses, workers=pool)
        return {task.name: value * len(tasks) for task, value in zip(tasks, values, strict=True)}

    rates = config.model_copy(update={"shared_rate": config.ancestor_rate, "expert_rate": config.ancestor_rate})
    run = Run(
        phase="ancestor",
        model=one,
        groups=groups(one.shared(), one.named_weights(), rates),
        gradients=gradients,
        steps=config.ancestor_steps,
        config=config,
        state=out.with_suffix(".state"),
        report=report,
        origin=digest(dense),
        falls=False,
        ignored=_EXPERTS_ALONE,
    )
    run.train()
    return out if out.exists() else write(one.view(0), dense, out)


def train_experts(
    ancestor: Path,
    batches: Batches,
    *,
    objective: Objective,
    config: PretrainConfig,
    out: Path,
    report: Report,
    held: Mapping[str, Sequence[Row]] | None = None,
    first_step: int = 0,
    workers: int = 1,
) -> Path:
    """Train one expert per task from a dense checkpoint, and write the MoE to `out`; early stop by `held` rows, if any.

    `workers` tasks run side by side; the result does not depend on it.
    """
    tasks = objective.space.tasks
    experts = TaskExperts(load(ancestor), experts=len(tasks))
    stop = EarlyStop(experts, patience=config.patience)
    pool = ThreadPoolExecutor(workers)

    def gradients(step: int) -> dict[str, float]:
        staying = stop.staying()
        losses = [(v, partial(_share, objective, batches.of(v, first_step + step))) for v in staying]
        values = experts.backward(losses, workers=pool)
        return {tasks[v].name: value * len(tasks) for v, value in zip(staying, values, strict=True)}

    def look(step: int) -> None:
        if not held or not config.look_every or step % config.look_every:
            return
        figures = {
            v: objective.figure(experts.view(v), held[tasks[v].name][: config.look_rows]) for v in stop.staying()
        }
        stop.look(figures)
        run.curve.add(step, "figure", {tasks[v].name: value for v, value in figures.items()})

    run = Run(
        phase="experts",
        model=nn.ModuleList([experts, stop]),
        groups=groups(experts.shared(), experts.named_weights(), config),
        gradients=gradients,
        steps=config.steps,
        config=config,
        state=out.with_suffix(".state"),
        report=report,
        origin=digest(ancestor),
        look=look,
    )
    run.train()
    return out if out.exists() else experts.export(ancestor, out, tasks=tasks)


def _share(objective: Objective, batch: Batch, view: Any) -> Tensor:
    """Give a task's share of a step's loss, from its batch."""
    return (objective.row_losses(view, batch) * batch.truth["weight"]).mean() / len(objective.space.tasks)


def groups(
    shared: Mapping[str, nn.Parameter], experts: Iterable[tuple[str, nn.Parameter]], config: PretrainConfig
) -> list[dict[str, Any]]:
    """Sort parameters by their rate; what stays as it is learns nothing, and is left out."""
    head = [(name, weight) for name, weight in shared.items() if _HEAD.search(name)]
    body = [(name, weight) for name, weight in shared.items() if not _HEAD.search(name)]
    sorts = ((body, config.shared_rate), (head, config.head_rate), (experts, config.expert_rate))
    return [
        {"params": [weight for name, weight in sort if not _stays(name, weight, config)], "lr": rate}
        for sort, rate in sorts
    ]


def _stays(name: str, weight: nn.Parameter, config: PretrainConfig) -> bool:
    """Freeze a parameter of the embeddings or of the lowest layers, if the settings say so."""
    layer = _LAYER.search(name)
    below = layer is not None and int(layer[1]) < config.frozen_layers
    if below or ((config.frozen_layers or not config.train_embeddings) and _EMBEDDINGS.search(name)):
        weight.requires_grad_(False)
    return not weight.requires_grad
