"""SMEAR: a gate's probabilities merge the weights of all experts, per token as the paper has it.

Muqeeth, Liu, Raffel: Soft Merging of Experts with Adaptive Routing. TMLR (2024). Its authors merge once a sequence.
"""

from typing import Any

import torch
from torch import Tensor

from tanbr.lab.gates import Gated, Inputs, RowLosses, gates_of
from tanbr.moe.layer import TokenRouting


class Smear(Gated):
    """One merged FFN for every token, of all K experts; the task loss alone teaches the gates."""

    def __init__(self, model: Any, *, seed: int = 0) -> None:
        super().__init__(model, seed=seed)
        self.routing = TokenRouting(gates_of(model)[0].out_features, mix="products")

    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """Mean task loss."""
        with self.serving():
            return row_losses().mean()
