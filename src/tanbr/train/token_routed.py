"""Token-routed training: the same MoE, but learned gates choose the experts of every token, whatever its task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tanbr.moe.gates import Gated
from tanbr.moe.layer import ExpertLinear
from tanbr.train.batches import Batches
from tanbr.train.checkpoints import digest, upcycled, write
from tanbr.train.config import PretrainConfig
from tanbr.train.objectives import Objective
from tanbr.train.pretrain import groups
from tanbr.train.run import Report, Run


def train_gates(
    ancestor: Path,
    batches: Batches,
    *,
    gates: Callable[[Any], Gated],
    objective: Objective,
    config: PretrainConfig,
    out: Path,
    report: Report,
) -> Path:
    """Upcycle a dense checkpoint to as many experts as tasks, train it and its gates, and write it to `out`."""
    moe = upcycled(ancestor, experts=len(objective.space.tasks))
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
        batch, kept = batches.at(step), []

        def row_losses() -> Tensor:
            kept.append(objective.row_losses(moe, batch))
            return kept[0]

        rng = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        gated.loss(objective.inputs(batch), row_losses, rng).backward()  # type: ignore[no-untyped-call]
        return objective.by_task(kept[0].detach(), batch)

    Run(
        phase="gates",
        model=nn.ModuleList([moe, gated]),
        groups=[*groups(shared, experts.items(), config), beside],
        gradients=gradients,
        steps=config.steps,
        config=config,
        state=out.with_suffix(".state"),
        report=report,
        origin=digest(ancestor),
    ).train()
    return out if out.exists() else write(moe, ancestor, out)
