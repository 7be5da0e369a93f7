"""Task-routed training: every task trains its own copy of a dense ancestor's FFNs.

The ancestor may learn all tasks first (`train_together`): nobody tells a merged model a request's task, and what
routing told the experts while they trained, their blends cannot know, unless the ancestor has learnt to recognise it.
The experts of all sites start equal, which is what makes blends of them meaningful; what they share (embeddings,
attention, norms, head) goes on learning at a rate of its own. A step takes a batch of every task, one after the other,
and moves all weights once. In steps that are meant for merging, a task's batch runs through a blend of all experts
around its own (`mergeable_blends`), so that experts learn to be good together, too. `train_gates` trains the same MoE
token-routed: learned gates choose the experts of every token, whatever its task.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tanbr.errors import ConfigError
from tanbr.lab.gates import Gated
from tanbr.lab.train.checkpoints import digest, load, upcycled, write
from tanbr.lab.train.config import PretrainConfig
from tanbr.lab.train.expert_views import AdapterViews, ExpertViews
from tanbr.lab.train.objectives import Batch, Batches, Objective
from tanbr.lab.train.run import Curve, OnStep, Run
from tanbr.moe.layer import ExpertLinear
from tanbr.tasks.card import Card
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray


@dataclass(frozen=True)
class Course:
    """Rows, what is to be learnt from them, and how."""

    batches: Batches
    objective: Objective
    config: PretrainConfig
    report: OnStep
    workers: int = 1  # tasks that run side by side; weights do not depend on it

    @property
    def device(self) -> torch.device:
        """Where batches are, and what learns from them."""
        return self.batches.device

    def phase(
        self,
        name: str,
        model: nn.Module,
        groups: list[dict[str, Any]],
        gradients: Callable[[int], Mapping[str, float]],
        *,
        out: Path,
        write: Callable[[], Path],
        **options: Any,
    ) -> Path:
        """Train a phase, its state beside `out`, and write that folder unless it is there; `options` are `Run`'s."""
        state, report = out.with_suffix(".state"), self.report
        Run(name, model, groups, gradients, config=self.config, state=state, report=report, **options).train()
        return out if out.exists() else write()


_HEAD = re.compile(r"^(classifier|bert\.pooler)\.")
_EMBEDDINGS = re.compile(r"(^|\.)(embeddings|shared|embed_tokens|lm_head)\.")
_LAYER = re.compile(r"(?:^|\.)encoder\.(?:layer|block)\.(\d+)\.")


def groups(
    shared: Mapping[str, nn.Parameter], experts: Iterable[tuple[str, nn.Parameter]], config: PretrainConfig
) -> list[dict[str, Any]]:
    """Sort parameters by their rate, as AdamW takes them; what stays as it is learns nothing, and is left out."""
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


class EarlyStop(nn.Module):
    """A task whose figure no longer improves leaves the training, with its best expert.

    What the experts share has learnt on since that expert was kept, and may no longer fit it. So it is measured again,
    and comes back only if it is still the better one. All state is buffers, so that a resumed run goes on with it.
    """

    best: Tensor  # (K,) best figure so far
    stale: Tensor  # (K,) looks since
    left: Tensor  # (K,) whether the task has left

    def __init__(self, experts: ExpertViews, *, patience: int) -> None:
        super().__init__()
        K = len(experts)
        self._experts, self._patience = [experts], patience  # in a list, so that it is no sub-module
        self.register_buffer("best", torch.full((K,), -torch.inf))
        self.register_buffer("stale", torch.zeros(K, dtype=torch.int64))
        self.register_buffer("left", torch.zeros(K, dtype=torch.bool))
        for k in range(K):
            for i, value in enumerate(experts.weights(k).values()):
                self.register_buffer(f"kept_{k}_{i}", value.detach().clone())

    def staying(self) -> list[int]:
        """List the tasks that still train."""
        return [k for k, left in enumerate(self.left.tolist()) if not left]

    @torch.no_grad()
    def look(self, figures: Mapping[int, float], measure: Callable[[int], float]) -> None:
        """Take in the figures of the tasks that still train; `measure` gives a task's as its expert is then."""
        for k, figure in figures.items():
            better = figure >= self.best[k]  # one that stays, such as 0 before a task is learnt, is no reason to stop
            self.stale[k] = 0 if better else self.stale[k] + 1
            kept = [self.get_buffer(f"kept_{k}_{i}") for i in range(len(self._experts[0].names))]
            live: list[Tensor] = list(self._experts[0].weights(k).values())
            if better:
                self.best[k] = figure
                torch._foreach_copy_(kept, live)
            elif self.stale[k] >= self._patience:
                self.left[k] = True
                last = [weight.clone() for weight in live]
                torch._foreach_copy_(live, kept)
                if measure(k) < figure:
                    torch._foreach_copy_(live, last)


EXPERTS_ALONE = frozenset(
    {
        "ancestor_steps", "steps", "expert_rate", "shared_rate", "mergeable",
        "look_every", "look_rows", "patience", "final_rows", "save_every", "adapters", "adapter_rate",
    }
)  # fmt: skip
"""Settings that do not change what an ancestor learns; at its constant rate, not even the number of its steps does."""

BLEND_ALPHA = 0.3  # how even the blends of `mergeable` steps are; as even as the mixes of simulated traffic

ADAPTERS = frozenset({"adapters", "adapter_rate"})
"""Settings that mean nothing to whole experts."""

LENGTH = frozenset({"steps", "patience", "final_rows", "save_every"})
"""Settings of the experts that may change before a state goes on: with more steps, rates rise to the longer run's."""


def batch_sizes(rows: Mapping[str, Sequence[Row]], config: PretrainConfig) -> list[int]:
    """Give the rows of each task in a step: `task_rows`, or `batch`."""
    unknown = sorted({*config.task_rows, *config.ancestor_rows} - set(rows))
    if unknown:
        raise ConfigError(f"task_rows must name tasks that are trained: {', '.join(rows)} (got {unknown[0]!r})")
    return [config.task_rows.get(name, config.batch) for name in rows]


def ancestor_sizes(course: Course) -> list[int]:
    """Give the rows of each task in a step of the ancestor."""
    names = [task.name for task in course.objective.space.tasks]
    sizes = zip(names, course.batches.sizes, strict=True)
    return [course.config.ancestor_rows.get(name, size) for name, size in sizes]


def mergeable_blends(step: int, tasks: int, config: PretrainConfig) -> FloatArray | None:
    """Draw each task's blend (V, K) of a step around its own expert; None for a step of every expert alone.

    All experts have BLEND_ALPHA in a Dirichlet draw, and a task's own has K times that on top, about half the weight.
    """
    rng = np.random.default_rng((config.seed, step))
    if rng.random() >= config.mergeable:
        return None
    around = BLEND_ALPHA * (np.ones((tasks, tasks)) + tasks * np.eye(tasks))
    return np.stack([rng.dirichlet(concentration) for concentration in around])


def train_together(dense: Path, course: Course, *, out: Path) -> Path:
    """Train a dense checkpoint on all tasks at once, for `ancestor_steps`, and write it to `out`."""
    config, tasks = course.config, course.objective.space.tasks
    one = ExpertViews(load(dense).to(course.device), experts=1)
    pool, batches = ThreadPoolExecutor(course.workers), course.batches.resized(ancestor_sizes(course))

    def gradients(step: int) -> dict[str, float]:
        losses = [(0, partial(_share, course.objective, batches.of(v, step))) for v in range(len(tasks))]
        values = one.backward(losses, workers=pool)
        return {task.name: value * len(tasks) for task, value in zip(tasks, values, strict=True)}

    rates = config.model_copy(update={"shared_rate": config.ancestor_rate, "expert_rate": config.ancestor_rate})
    return course.phase(
        "ancestor",
        one,
        groups(one.shared(), one.named_weights(), rates),
        gradients,
        steps=config.ancestor_steps,
        origin=digest(dense),
        out=out,
        write=lambda: write(one.view(0), dense, out),
        falls=False,
        ignored=EXPERTS_ALONE,
    )


def train_experts(
    ancestor: Path,
    course: Course,
    *,
    out: Path,
    held: Mapping[str, Sequence[Row]] | None = None,
    first_step: int = 0,
) -> Path:
    """Train one expert per task from a dense checkpoint, and write the MoE to `out`; early stop by `held` rows, if any.

    With `adapters` the experts are LoRA adapters, and `out` is a folder of these. The first batch is that of
    `first_step`: those before it have taught the ancestor.
    """
    config, objective, tasks = course.config, course.objective, course.objective.space.tasks
    dense = load(ancestor).to(course.device)
    experts = _adapters(dense, course) if config.adapters else ExpertViews(dense, experts=len(tasks))
    stop = EarlyStop(experts, patience=config.patience)
    pool = ThreadPoolExecutor(course.workers)
    curve = Curve.beside(out)

    def gradients(step: int) -> dict[str, float]:
        staying = stop.staying()
        losses = [(v, partial(_share, objective, course.batches.of(v, first_step + step))) for v in staying]
        blends = mergeable_blends(step, len(tasks), config)
        values = experts.backward(losses, workers=pool, blends=None if blends is None else blends[staying])
        return {tasks[v].name: value * len(tasks) for v, value in zip(staying, values, strict=True)}

    def look(step: int) -> None:
        if not held or not config.look_every or step % config.look_every:
            return

        def figure(v: int) -> float:
            return objective.figure(experts.view(v), held[tasks[v].name][: config.look_rows])

        figures = {v: figure(v) for v in stop.staying()}
        stop.look(figures, figure)
        curve.add(step, "figure", {tasks[v].name: value for v, value in figures.items()})

    changes = {"frozen_layers": 0, "expert_rate": config.adapter_rate} if config.adapters else {}
    rates = config.model_copy(update=changes)
    return course.phase(
        "experts",
        nn.ModuleList([experts, stop]),
        groups(experts.shared(), experts.named_weights(), rates),
        gradients,
        steps=config.steps,
        origin=digest(ancestor),
        out=out,
        write=lambda: experts.export(ancestor, out, tasks=tasks),
        look=look,
        ignored=LENGTH if config.adapters else LENGTH | ADAPTERS,
    )


def _adapters(dense: PreTrainedModel, course: Course) -> ExpertViews:
    config = course.config
    if config.mergeable:
        raise ConfigError("blends of adapters cannot be trained; leave out mergeable, or adapters")
    return AdapterViews(dense, experts=len(course.objective.space.tasks), rank=config.adapters, seed=config.seed)


def _share(objective: Objective, batch: Batch, view: Any) -> Tensor:
    """Give a task's share of a step's loss, from its batch."""
    return (objective.row_losses(view, batch) * batch.truth["weight"]).mean() / len(objective.space.tasks)


def train_gates(ancestor: Path, course: Course, *, gates: Callable[[Any], Gated], out: Path) -> Path:
    """Upcycle a dense checkpoint to as many experts as tasks, train it and its gates, and write it to `out`."""
    config, objective = course.config, course.objective
    moe = upcycled(ancestor, experts=len(objective.space.tasks)).to(course.device)
    gated = gates(moe)
    experts = {
        f"{at}.{name}": weight
        for at, module in moe.named_modules()
        if isinstance(module, ExpertLinear)
        for name, weight in module.named_parameters()
    }
    shared = {name: weight for name, weight in moe.named_parameters() if name not in experts}
    beside = {"params": list(gated.parameters()), "lr": config.head_rate}  # what the gates' training has of its own

    def gradients(step: int) -> dict[str, float]:
        batch, kept = course.batches.at(step), []

        def row_losses() -> Tensor:
            kept.append(objective.row_losses(moe, batch))
            return kept[0] * batch.truth["weight"]

        rng = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        gated.loss(objective.inputs(batch), row_losses, rng).backward()  # type: ignore[no-untyped-call]
        return objective.by_task(kept[0].detach(), batch)

    return course.phase(
        "gates",
        nn.ModuleList([moe, gated]),
        [*groups(shared, experts.items(), config), beside],
        gradients,
        steps=config.steps,
        origin=digest(ancestor),
        out=out,
        write=lambda: write(moe, ancestor, out, card=Card(objective.space.tasks)),
    )
