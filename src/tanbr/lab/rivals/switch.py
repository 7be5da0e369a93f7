"""Switch: a gate sends every token to one expert, and a loss keeps the experts evenly loaded.

Fedus, Zoph, Shazeer: Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity.
JMLR 23 (2022). Every token is computed here: there is no capacity that drops some, and no jitter of the gate's input.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tanbr.lab.gates import Gated, Inputs, RowLosses, Said, heard, real_tokens
from tanbr.moe.layer import TokenRouting

BALANCE = 0.01  # α, the weight of the load-balance loss


class Switch(Gated):
    """Top-1 routing of tokens, the output scaled by the gate's probability: that is how the gate learns."""

    routing = TokenRouting(top_k=1)

    def __init__(self, model: Any, *, balance: float = BALANCE, seed: int = 0) -> None:
        super().__init__(model, seed=seed)
        self.balance = balance

    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """Mean task loss, and α times every site's load-balance loss."""
        with self.serving(), heard(self.model) as said:
            losses = row_losses()
        return losses.mean() + self.balance * balance_loss(said, real_tokens(self.model, inputs))


def balance_loss(said: list[Said], real: list[Tensor]) -> Tensor:
    """Sum the load-balance losses of all sites over their real tokens."""
    pairs = zip(said, real, strict=True)
    return torch.stack([load_balance(site.logits[flags.flatten()]) for site, flags in pairs]).sum()


def load_balance(logits: Tensor) -> Tensor:
    """K Σ_k f_k P_k for logits (m, K): f_k the share of tokens sent to k, P_k its mean probability; 1 when even."""
    K = logits.shape[1]
    sent = F.one_hot(logits.argmax(dim=1), K).to(logits.dtype).mean(dim=0)
    return K * (sent * logits.softmax(dim=1).mean(dim=0)).sum()
