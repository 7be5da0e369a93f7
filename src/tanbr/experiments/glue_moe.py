"""How a task-routed MoE is made from a real dense checkpoint and GLUE."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tanbr.config import PretrainConfig
from tanbr.moe.text import TextEncoder
from tanbr.tasks import glue
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.train.batches import Batches
from tanbr.train.objectives import objective_of
from tanbr.train.pretrain import batch_sizes, load, prepare, train_experts

Report = Callable[[str, int, int, str], None]  # phase, done, total, note


def train(
    config: PretrainConfig,
    *,
    dense: Path,
    rows: Mapping[str, Sequence[Row]],
    held: Mapping[str, Sequence[Row]],
    out: Path,
    report: Report,
    tagged: bool = False,
    workers: int = 2,
) -> Path:
    """Train one expert per GLUE task from a dense BERT or T5, early stop by `held` rows; write it to `out`/model."""
    space = LabelSpace(tuple(task for task in glue.TASKS if task.name in rows))
    rows = {task.name: rows[task.name][: config.train_rows] for task in space.tasks}
    ancestor = prepare(dense, space, out / "start", max_length=config.max_length)
    settings = load(ancestor).config
    encoder = TextEncoder.of(ancestor, vocab_size=settings.vocab_size, max_length=config.max_length)
    objective = objective_of(settings, space, encoder, tagged=tagged)
    batches = Batches(rows, objective=objective, sizes=batch_sizes(rows, config), seed=config.seed)
    report("rows", 1, 1, f"{sum(map(len, rows.values()))} rows, {sum(batches.sizes)} a step")
    return train_experts(
        ancestor,
        batches,
        objective=objective,
        config=config,
        out=out / "model",
        report=lambda phase, done, total, loss: report(phase, done, total, f"loss {loss:.3f}"),
        held=held,
        workers=workers,
    )
