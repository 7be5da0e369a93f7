"""RL: every site's gate is a policy that draws an expert per token, taught by REINFORCE with a learned baseline.

Clark et al.: Unified Scaling Laws for Routed Language Models. ICML 2022 (there RL-R); Williams: Simple Statistical
Gradient-Following Algorithms for Connectionist Reinforcement Learning. Machine Learning 8 (1992).
The reward is a row's −loss, one for all of its tokens, since a classified row has no loss per token.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tanbr.lab.gates import Gated, Inputs, RowLosses, gates_of, gumbel, heard, real_tokens
from tanbr.lab.rivals.switch import BALANCE, balance_loss
from tanbr.moe.layer import TokenRouting


class Reinforce(Gated):
    """Draws experts in training, serves the likeliest."""

    routing = TokenRouting(top_k=1, normalise=True)  # outputs as they are: nothing but the reward teaches the gate

    def __init__(self, model: Any, *, balance: float = BALANCE, seed: int = 0) -> None:
        super().__init__(model, seed=seed)
        self.balance = balance
        self.baselines = nn.ModuleList(map(_baseline, gates_of(model)))  # of the expected reward

    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:
        """Mean task loss under drawn experts, the policy term, the baselines' squared error, the load-balance loss."""
        with self.serving(), heard(self.model, partial(gumbel, rng=rng)) as said:
            losses = row_losses()  # (n,)
        real = real_tokens(self.model, inputs)
        terms = [losses.mean(), self.balance * balance_loss(said, real)]
        for site, flags, gate, baseline in zip(said, real, gates_of(self.model), self.baselines, strict=True):
            tokens = flags.flatten()
            seen = site.seen[tokens].detach()  # the policy's noisy gradient goes to the gate, not into the model
            reward = -losses.detach().repeat_interleave(flags.sum(dim=1))
            terms.append(policy_loss(gate(seen), site.choice[tokens], reward, baseline(seen).squeeze(-1)))
        return torch.stack(terms).sum()


def policy_loss(logits: Tensor, choice: Tensor, reward: Tensor, baseline: Tensor) -> Tensor:
    """Mean over m tokens of −(r − b) log π(a), whose gradient is REINFORCE's, and of (r − b)²; logits (m, K)."""
    advantage = reward - baseline
    surprise = F.cross_entropy(logits, choice, reduction="none")  # −log π(a)
    return (advantage.detach() * surprise + advantage.square()).mean()


def _baseline(gate: nn.Linear) -> nn.Linear:
    linear = nn.Linear(gate.in_features, 1, device=gate.weight.device)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
