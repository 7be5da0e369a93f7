"""Task-routed training: every task trains its own copy of a dense ancestor's FFNs.

The ancestor may learn all tasks first: nobody tells a merged model a request's task, so it must recognise it. Experts
start equal, which makes their blends meaningful. A step takes a batch of every task, and moves all weights once; in
some steps a batch runs through a blend of all experts around its own (`mergeable_blends`). Two rivals learn from
the same rows: experts behind learned gates, and one dense model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from tanbr.errors import ConfigError
from tanbr.lab.corpus import Progress, Rows
from tanbr.lab.train.checkpoints import Figures, as_trained, digest, load, prepare, upcycled, write
from tanbr.lab.train.config import Preset
from tanbr.lab.train.expert_views import LIST, AdapterViews, ExpertViews, TokenViews
from tanbr.lab.train.objectives import Batches, Objective, objective_of
from tanbr.lab.train.run import Run
from tanbr.moe.device import device_of
from tanbr.moe.text import TextEncoder
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Task
from tanbr.types import FloatArray

BLEND_ALPHA = 0.3  # how even the blends of `mergeable` steps are; as even as the mixes of simulated traffic

EXPERTS_ALONE = frozenset({"ancestor_steps", "steps", "mergeable", "adapters"})
"""Settings that do not change what an ancestor learns; at its constant rate, not even the number of its steps does."""

Routing: TypeAlias = Literal["task", "token", "none"]  # an expert per task, gates that route tokens, one dense model
PHASES: dict[Routing, str] = {"task": "experts", "token": "gates", "none": "dense"}

LENGTH = frozenset({"steps"})
"""May change before the experts' state goes on: with more steps, rates rise to the longer run's."""


@dataclass(frozen=True)
class Course:
    """Rows, what is to be learnt from them, and how."""

    batches: Batches
    objective: Objective
    config: Preset
    report: Progress

    def _numbers(self) -> AbstractContextManager[object]:
        """Multiply matrices in the settings' precision."""
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.batches.device.type, torch.bfloat16)

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
        state = out.with_suffix(".state")
        Run(name, model, groups, gradients, config=self.config, state=state, report=self.report, **options).train()
        return out if out.exists() else write()

    def backward(
        self, experts: ExpertViews, step: int, *, rows: Mapping[str, int], blends: FloatArray | None = None
    ) -> dict[str, float]:
        """Leave the gradients of a step's batches, each task's through its own expert; give the tasks' losses."""
        tasks, found = self.objective.space.tasks, {}
        for v, task in enumerate(tasks):
            batch = self.batches.of(v, step, size=rows.get(task.name, self.config.batch))
            view = experts.view(v, None if blends is None else blends[v])
            with self._numbers():
                loss = (self.objective.row_losses(view, batch) * batch.truth["weight"]).mean()
            loss = loss / len(tasks) + experts.penalty()
            loss.backward()  # type: ignore[no-untyped-call]
            found[task.name] = loss.item() * len(tasks)
        return found


def train_from_dense(
    config: Preset,
    *,
    dense: Path,
    rows: Rows,
    out: Path,
    report: Progress,
    tasks: Sequence[Task],
    unseen: Rows | None = None,
    routing: Routing = "task",
    tagged: bool = False,
) -> tuple[Path, dict[str, Figures]]:
    """Train one expert per task from a dense BERT or T5, or what else `routing` says; write it to `out`/model.

    With `adapters` they are LoRA adapters, and the list of them is given; with `ancestor_steps` the dense model learns
    all tasks first. The model is scored on `unseen` rows, if there are any.
    """
    device = device_of(config.device)  # before anything is written
    if config.adapters and (config.mergeable or routing != "task"):
        other = "mergeable" if config.mergeable else f"--routing {routing}"
        raise ConfigError(f"every adapter is trained alone, for one task; leave out {other}, or adapters")
    unknown = sorted({*config.task_rows, *config.ancestor_rows} - set(rows))
    if unknown:
        raise ConfigError(f"task_rows must name tasks that are trained: {', '.join(rows)} (got {unknown[0]!r})")
    space = LabelSpace(tuple(task for task in tasks if task.name in rows))
    rows = {task.name: rows[task.name][: config.train_rows] for task in space.tasks}
    ancestor = prepare(dense, space, out / f"start-{digest(dense)}", max_length=config.max_length, seed=config.seed)
    settings = load(ancestor).config
    encoder = TextEncoder.of(ancestor, vocab_size=settings.vocab_size, max_length=config.max_length)
    objective = objective_of(settings, space, encoder, tagged=tagged)
    batches = Batches(rows, objective=objective, seed=config.seed, device=device)
    report("rows", 1, 1, f"{sum(map(len, rows.values()))} rows")
    course = Course(batches, objective, config, report)
    if config.ancestor_steps:
        ancestor = train_together(ancestor, course, out=out / "ancestor")
    folder = out / ("adapters" if config.adapters else "model")
    model = train_experts(ancestor, course, out=folder, first_step=config.ancestor_steps, routing=routing)
    model = model / LIST if config.adapters else model
    return model, as_trained(model, objective, unseen, device=config.device) if unseen else {}


def train_together(dense: Path, course: Course, *, out: Path) -> Path:
    """Train a dense checkpoint on all tasks at once into `out`; one without a state was put there, and stays."""
    config = course.config
    if out.exists() and not out.with_suffix(".state").exists():
        return out
    one = ExpertViews(load(dense).to(course.batches.device), experts=1)
    rows, rate = config.task_rows | config.ancestor_rows, config.ancestor_rate
    return course.phase(
        "ancestor",
        one,
        groups(one, config, shared_rate=rate, expert_rate=rate),
        lambda step: course.backward(one, step, rows=rows),
        steps=config.ancestor_steps,
        origin=digest(dense),
        out=out,
        write=lambda: write(one.dense, out, dense),
        falls=False,
        ignored=EXPERTS_ALONE,
    )


def train_experts(ancestor: Path, course: Course, *, out: Path, first_step: int, routing: Routing = "task") -> Path:
    """Train what `routing` says from a dense checkpoint; the steps before `first_step` have taught the ancestor."""
    config, tasks, device = course.config, course.objective.space.tasks, course.batches.device
    dense = load(ancestor).to(device)
    if config.adapters:
        experts: ExpertViews = AdapterViews(dense, experts=len(tasks), rank=config.adapters, seed=config.seed)
        learning = [{"params": list(experts.experts.parameters()), "lr": config.adapter_rate}]
    else:
        if routing == "token":
            experts = TokenViews(
                upcycled(ancestor, experts=len(tasks)).to(device), experts=len(tasks), seed=config.seed
            )
        else:
            experts = ExpertViews(dense, experts=len(tasks) if routing == "task" else 1)
        learning = groups(experts, config, shared_rate=config.shared_rate, expert_rate=config.expert_rate)

    def gradients(step: int) -> dict[str, float]:
        blends = mergeable_blends(step, len(tasks), config) if routing == "task" else None
        return course.backward(experts, first_step + step, rows=config.task_rows, blends=blends)

    return course.phase(
        PHASES[routing],
        experts,
        learning,
        gradients,
        steps=config.steps,
        origin=digest(ancestor),
        out=out,
        write=lambda: experts.export(ancestor, out, tasks=tasks),
        ignored=LENGTH,
    )


def mergeable_blends(step: int, tasks: int, config: Preset) -> FloatArray | None:
    """Draw each task's blend (V, K) of a step around its own expert; None for a step of every expert alone.

    All experts have BLEND_ALPHA in a Dirichlet draw, and a task's own has K times that on top, about half the weight.
    """
    rng = np.random.default_rng((config.seed, step))
    if rng.random() >= config.mergeable:
        return None
    around = BLEND_ALPHA * (np.ones((tasks, tasks)) + tasks * np.eye(tasks))
    return np.stack([rng.dirichlet(concentration) for concentration in around])


_HEAD = re.compile(r"^(classifier|bert\.pooler)\.")
_EMBEDDINGS = re.compile(r"(^|\.)(embeddings|shared|embed_tokens|lm_head)\.")
_LAYER = re.compile(r"(?:^|\.)encoder\.(?:layer|block)\.(\d+)\.")


def groups(experts: ExpertViews, config: Preset, *, shared_rate: float, expert_rate: float) -> list[dict[str, Any]]:
    """Sort parameters by their rate, as AdamW takes them; what stays as it is learns nothing, and is left out."""
    shared = experts.shared().items()
    head = [(name, weight) for name, weight in shared if _HEAD.search(name)]
    body = [(name, weight) for name, weight in shared if not _HEAD.search(name)]
    own = [pair for k in range(len(experts.experts)) for pair in experts.weights(k).items()]
    return [
        {"params": [weight for name, weight in sort if not _stays(name, weight, config)], "lr": rate}
        for sort, rate in ((body, shared_rate), (head, config.head_rate), (own, expert_rate))
    ]


def _stays(name: str, weight: nn.Parameter, config: Preset) -> bool:
    """Freeze a parameter of the embeddings or of the lowest layers, if the settings say so."""
    layer = _LAYER.search(name)
    below = layer is not None and int(layer[1]) < config.frozen_layers
    if below or ((config.frozen_layers or not config.train_embeddings) and _EMBEDDINGS.search(name)):
        weight.requires_grad_(False)
    return not weight.requires_grad
