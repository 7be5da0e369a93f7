"""How a task-routed MoE is made from a real dense checkpoint and labelled rows: GLUE's, or your own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tanbr.lab.corpus import Progress, Rows
from tanbr.lab.gates import Gated
from tanbr.lab.task_figures import Figures, as_trained
from tanbr.lab.tasks import glue
from tanbr.lab.train.adapter_views import LIST
from tanbr.lab.train.batches import Batches
from tanbr.lab.train.checkpoints import digest, load, prepare
from tanbr.lab.train.config import PretrainConfig
from tanbr.lab.train.course import Course
from tanbr.lab.train.objectives import objective_of
from tanbr.lab.train.pretrain import batch_sizes, train_experts, train_together
from tanbr.lab.train.token_routed import train_gates
from tanbr.moe.device import device_of
from tanbr.moe.text import TextEncoder
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Task


def train(
    config: PretrainConfig,
    *,
    dense: Path,
    rows: Rows,
    held: Rows,
    out: Path,
    report: Progress,
    unseen: Rows | None = None,
    tagged: bool = False,
    tasks: Sequence[Task] = glue.TASKS,
    gates: Callable[[Any], Gated] | None = None,
    workers: int = 1,
) -> tuple[Path, dict[str, Figures]]:
    """Train one expert per task from a dense BERT or T5, early stop by `held` rows; write it to `out`/model.

    With `adapters` they are LoRA adapters in `out`/adapters, and what is given is the list of them.
    With `ancestor_steps` the dense model learns all tasks first, and is written to `out`/ancestor. With `gates`,
    experts belong to no task: learned gates route every token. In the end an MoE of experts by task is scored on
    `unseen` rows, if there are any: with tags, and merged evenly.
    """
    device = device_of(config.device)  # before anything is written
    space = LabelSpace(tuple(task for task in tasks if task.name in rows))
    rows = {task.name: rows[task.name][: config.train_rows] for task in space.tasks}
    ancestor = prepare(dense, space, out / f"start-{digest(dense)}", max_length=config.max_length, seed=config.seed)
    settings = load(ancestor).config
    encoder = TextEncoder.of(ancestor, vocab_size=settings.vocab_size, max_length=config.max_length)
    objective = objective_of(settings, space, encoder, tagged=tagged)
    sizes = batch_sizes(rows, config)
    batches = Batches(rows, objective=objective, sizes=sizes, seed=config.seed, device=device)
    report("rows", 1, 1, f"{sum(map(len, rows.values()))} rows, {sum(sizes)} a step")

    def steps(phase: str, done: int, total: int, loss: float) -> None:
        report(phase, done, total, f"loss {loss:.3f}")

    course = Course(batches, objective, config, steps, workers if device.type == "cpu" else 1)
    if gates:
        return train_gates(ancestor, course, gates=gates, out=out / "model"), {}
    if config.ancestor_steps:
        ancestor = train_together(ancestor, course, out=out / "ancestor")
    folder = out / ("adapters" if config.adapters else "model")
    model = train_experts(ancestor, course, out=folder, held=held, first_step=config.ancestor_steps)
    model = model / LIST if config.adapters else model
    return model, as_trained(model, objective, unseen, device=config.device) if unseen else {}
