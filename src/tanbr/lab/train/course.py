"""What all phases in which one MoE is made have in common, and how each of them runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tanbr.lab.train.batches import Batches
from tanbr.lab.train.config import PretrainConfig
from tanbr.lab.train.objectives import Objective
from tanbr.lab.train.run import OnStep, Run


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
        steps: int,
        origin: str,
        out: Path,
        write: Callable[[], Path],
        **options: Any,
    ) -> Path:
        """Train a phase, its state beside `out`, and write that folder unless it is there; see `Run` for the rest."""
        Run(
            phase=name,
            model=model,
            groups=groups,
            gradients=gradients,
            steps=steps,
            config=self.config,
            state=out.with_suffix(".state"),
            report=self.report,
            origin=origin,
            **options,
        ).train()
        return out if out.exists() else write()
