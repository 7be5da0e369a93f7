"""Learned gates, what they say during a pass, and three rivals that train them: see `docs/baselines.md`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tanbr.lab.train.objectives import Batch, Objective
from tanbr.lab.train.tuner import Tuner
from tanbr.merge import measure
from tanbr.moe.layer import ExpertLinear, MoeSite, Routing, TokenRouting, route, sites_of

Inputs: TypeAlias = Mapping[str, Tensor]  # what the model takes in: attention_mask (n, length), …; labels for T5
RowLosses: TypeAlias = Callable[[], Tensor]  # runs the model, routed as it then is: the task loss of every row (n,)

STD = 0.02  # of a fresh gate's weights, transformers' usual value
BALANCE = 0.01  # α, the weight of the load-balance loss


def add_gates(model: Any, *, seed: int = 0) -> None:
    """Give every site that has no gate a fresh one; it is saved with the model."""
    rng = torch.Generator().manual_seed(seed)
    for site in sites_of(model):
        if site.gate is None:
            experts = next(module for module in site.modules() if isinstance(module, ExpertLinear)).weight  # (K, F, D)
            site.gate = nn.Linear(experts.shape[2], experts.shape[0], bias=False, device="meta")
            drawn = torch.randn(experts.shape[0], experts.shape[2], generator=rng) * STD
            site.gate.weight = nn.Parameter(drawn.to(experts))
    model.config.router = True


def gates_of(model: nn.Module) -> list[nn.Linear]:
    """Every site's gate, in the order in which they run; `add_gates` has given one to each."""
    return [site.gate for site in sites_of(model) if site.gate is not None]


class Gated(Tuner, ABC):
    """An un-merged model whose gates learn with its norms, and route it; further parameters are the rival's own."""

    balance = BALANCE

    def __init__(self, model: Any, *, seed: int = 0) -> None:
        add_gates(model, seed=seed)
        super().__init__(model)
        route(model, self.routing(gates_of(model)[0].out_features))
        self.beside = self.own()
        self.gates = nn.ParameterList(gate.weight for gate in gates_of(model)).requires_grad_(True)

    def own(self) -> nn.ModuleList:
        """Make what learns beside the model."""
        return nn.ModuleList()

    @abstractmethod
    def routing(self, experts: int) -> Routing:
        """Say how every token goes to the experts, in training as when served."""

    @abstractmethod
    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:
        """Call `row_losses` once, and return the whole loss of the step, ready for backward."""

    def backward(self, batch: Batch, objective: Objective, rng: torch.Generator) -> Tensor:
        """Leave the gradients of the gates' own loss; the rows' losses (n,)."""
        kept: list[Tensor] = []

        def row_losses() -> Tensor:
            kept.append(objective.row_losses(self.model, batch))
            return kept[0]

        self.loss(objective.inputs(batch), row_losses, rng).backward()  # type: ignore[no-untyped-call]
        return kept[0].detach()


@dataclass(frozen=True, eq=False)
class Said:
    """What one site's gate said to the m tokens (or sequences) of a pass."""

    seen: Tensor  # (m, D)
    logits: Tensor  # (m, K)
    choice: Tensor  # (m,) the expert with the highest logit, after the change where there was one


@contextmanager
def heard(model: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[list[Said]]:
    """Collect what the gates say, in the order of the sites; `change` alters the logits that the sites then go by."""
    said: list[Said] = []

    def hear(_: nn.Module, args: tuple[Tensor, ...], logits: Tensor) -> Tensor | None:
        changed = None if change is None else change(logits)
        said.append(Said(args[0], logits, (logits if changed is None else changed).argmax(dim=-1)))
        return changed

    hooks = [gate.register_forward_hook(hear) for gate in gates_of(model)]
    try:
        yield said
    finally:
        for hook in hooks:
            hook.remove()


def real_tokens(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Tell padding from tokens at every site: flags (n, length), in the order of the sites."""
    names = [name for name, module in model.named_modules() if isinstance(module, MoeSite)]
    return [measure.real_tokens(name, inputs) for name in names]


def gumbel(logits: Tensor, rng: torch.Generator) -> Tensor:
    """Add the noise with which the highest of logits (m, K) is a draw from their softmax."""
    uniform = torch.rand(logits.shape, generator=rng, dtype=logits.dtype).clamp_min(torch.finfo(logits.dtype).tiny)
    return logits - (-uniform.log()).log().to(logits.device)


class Switch(Gated):
    """Top-1 routing of tokens, the output scaled by the gate's probability: that is how the gate learns."""

    def routing(self, experts: int) -> Routing:  # noqa: ARG002
        """One expert a token, at its probability."""
        return TokenRouting(top_k=1)

    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """Mean task loss, and α times every site's load-balance loss."""
        with heard(self.model) as said:
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


class Reinforce(Gated):
    """Draws experts in training, serves the likeliest."""

    def routing(self, experts: int) -> Routing:  # noqa: ARG002
        """One expert a token, whose output stays as it is: nothing but the reward teaches the gate."""
        return TokenRouting(top_k=1, normalise=True)

    def own(self) -> nn.ModuleList:
        """Make a baseline of the expected reward for each gate."""
        gates = gates_of(self.model)
        baselines = nn.ModuleList(nn.Linear(gate.in_features, 1, device=gate.weight.device) for gate in gates)
        for parameter in baselines.parameters():
            nn.init.zeros_(parameter)
        return baselines

    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:
        """Mean task loss under drawn experts, the policy term, the baselines' squared error, the load-balance loss."""
        with heard(self.model, partial(gumbel, rng=rng)) as said:
            losses = row_losses()  # (n,)
        real = real_tokens(self.model, inputs)
        terms = [losses.mean(), self.balance * balance_loss(said, real)]
        for site, flags, gate, baseline in zip(said, real, gates_of(self.model), self.beside, strict=True):
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


class Smear(Gated):
    """One merged FFN for every token, of all K experts; the task loss alone teaches the gates."""

    def routing(self, experts: int) -> Routing:
        """All experts for every token."""
        return TokenRouting(experts, mix="products")

    def loss(self, inputs: Inputs, row_losses: RowLosses, rng: torch.Generator) -> Tensor:  # noqa: ARG002
        """Mean task loss."""
        return row_losses().mean()
