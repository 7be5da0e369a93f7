"""Token-routed training: the same MoE, but learned gates choose the experts of every token, whatever its task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tanbr.lab.gates import Gated
from tanbr.lab.train.checkpoints import digest, upcycled, write
from tanbr.lab.train.course import Course
from tanbr.lab.train.rates import groups
from tanbr.moe.layer import ExpertLinear
from tanbr.tasks.card import Card


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
