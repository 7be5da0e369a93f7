"""A runnable MoE layer: what an un-merged model computes, and the rival that a merged one has to beat.

A *site* is one FFN with K experts. Which experts a site runs is its routing, set from outside:

    route(model, TaskRouting(experts))          # every sequence names its experts: (n,) or (n, k)
    with routed(model, TokenRouting(top_k=2)):  # for a while: the site's learned gate chooses for every token
        loss = model(**batch).loss

Sequences are the rows of the batch; padding is computed like any other token, as in a dense model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tanbr.errors import InputError

Activation: TypeAlias = Callable[[Tensor], Tensor]


class ExpertLinear(nn.Module):
    """K linear maps of one shape: weight (K, out, in) drawn with deviation `std`, bias (K, out) or none."""

    def __init__(self, experts: int, in_features: int, out_features: int, *, bias: bool, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features))
        nn.init.normal_(self.weight, std=std)
        self.bias = nn.Parameter(torch.zeros(experts, out_features)) if bias else None

    @property
    def experts(self) -> int:
        """K."""
        return self.weight.shape[0]

    def each(self) -> list[Activation]:
        """List the K maps as functions."""
        # unbind, not indexing: its backward stacks K gradients once instead of adding K zero-padded ones
        biases = [None] * self.experts if self.bias is None else self.bias.unbind(0)
        return [partial(F.linear, weight=w, bias=b) for w, b in zip(self.weight.unbind(0), biases, strict=True)]

    def all_at_once(self, x: Tensor) -> Tensor:
        """Apply map k to x[k], (K, rows, in) → (K, rows, out), in one batched product."""
        weight = self.weight.transpose(1, 2)
        return torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias.unsqueeze(1), x, weight)

    def merged(self, blend: Tensor) -> Activation:
        """Merge the K maps by a blend (K,) into one."""
        weight = (blend @ self.weight.flatten(1)).view(self.weight.shape[1:])
        return partial(F.linear, weight=weight, bias=None if self.bias is None else blend @ self.bias)

    def blended(self, x: Tensor, blends: Tensor) -> Tensor:
        """Apply to every row of x (m, in) its own merge of the K maps, by blends (m, K), without making it: (m, out).

        (Σ_k b_k W_k) x = Σ_k W_k (b_k x): as many products as merging takes, and no merged weight to store a row.
        """
        pairs = zip(blends.unbind(1), self.weight.unbind(0), strict=True)
        y = reduce(torch.add, (F.linear(share.unsqueeze(1) * x, weight) for share, weight in pairs))
        return y if self.bias is None else y + blends @ self.bias


@dataclass(frozen=True, eq=False)
class TaskRouting:
    """Every sequence names its experts; the outputs of several are averaged."""

    experts: Tensor  # (n,) or (n, k) int64


@dataclass(frozen=True, eq=False)
class BlendRouting:
    """Every sequence has a blend of all experts, which are merged by it into one FFN."""

    blends: Tensor  # (n, K), or (K,) for the whole batch


@dataclass(frozen=True)
class TokenRouting:
    """The site's gate chooses `top_k` experts per token, and mixes their outputs, or merges their weights.

    "products" computes what "weights" does without storing a merged FFN per token, so that it can be trained.
    """

    top_k: int = 1
    mix: Literal["weights", "products", "outputs"] = "outputs"
    normalise: bool = False  # whether the chosen experts' probabilities are made to sum to 1 (merging always does)


Routing: TypeAlias = TaskRouting | BlendRouting | TokenRouting
BY_GATES = TokenRouting(top_k=2, normalise=True)
"""How a checkpoint with gates routes itself. Shares sum to 1: equal experts compute what one of them would."""


class MoeSite(nn.Module):
    """Mixed into the module of a model that holds one FFN's experts; `route` sets its routing."""

    routing: Routing | None = None
    gate: nn.Linear | None  # (K, D); None where the model routes by task alone


def route(model: nn.Module, routing: Routing | None) -> None:
    """Set the routing of every site of an un-merged model."""
    for site in sites_of(model):
        site.routing = routing


@contextmanager
def routed(model: nn.Module, routing: Routing) -> Iterator[None]:
    """Set the routing of every site, and put the former one back at the end."""
    former = [(site, site.routing) for site in sites_of(model)]
    route(model, routing)
    try:
        yield
    finally:
        for site, routing_before in former:
            site.routing = routing_before


def sites_of(model: nn.Module) -> list[MoeSite]:
    """Every site of an un-merged model, in the order in which they run."""
    sites = [module for module in model.modules() if isinstance(module, MoeSite)]
    if not sites:
        raise InputError(f"{type(model).__name__} has no experts to route to; routing is for an un-merged MoE model")
    return sites


@dataclass(frozen=True, eq=False)
class ExpertFfn:
    """K feed-forward networks: outer(dropout(act(inner[0](x)) · inner[1](x))), the second factor only if gated."""

    inner: Sequence[ExpertLinear]
    outer: ExpertLinear
    act: Activation
    dropout: Activation

    def __call__(self, x: Tensor, site: MoeSite) -> Tensor:
        """Run x (n, length, D) through the experts that the site's routing names; (n, length, D)."""
        routing, K = site.routing, self.outer.experts
        if routing is None:
            raise InputError("an un-merged MoE model needs a routing: call tanbr.moe.layer.route(model, ...) first")
        if isinstance(routing, TaskRouting):
            experts = _named_experts(routing, batch=x.shape[0], experts=K).to(x.device)  # (n, k)
            share = torch.full(experts.shape, 1 / experts.shape[1], device=x.device)
            return self._mix_outputs(x, experts, share if experts.shape[1] > 1 else None)
        if isinstance(routing, BlendRouting):
            if routing.blends.shape not in {(K,), (x.shape[0], K)}:
                raise InputError(f"blends must be ({x.shape[0]}, {K}) or ({K},) (got {tuple(routing.blends.shape)})")
            return self._mix_weights(x, routing.blends.to(x))
        if site.gate is None:
            raise InputError("this model has no gate: build it with router=True, or route by task")
        return self._by_token(x, site.gate, routing)

    def _by_token(self, x: Tensor, gate: nn.Linear, routing: TokenRouting) -> Tensor:
        if not 1 <= routing.top_k <= self.outer.experts:
            raise InputError(f"top_k must be 1..{self.outer.experts} (got {routing.top_k})")
        tokens = x.reshape(-1, x.shape[-1])  # (m, D)
        probability, experts = gate(tokens).softmax(dim=-1).topk(routing.top_k, dim=-1)  # (m, k)
        normalised = probability / probability.sum(dim=-1, keepdim=True)
        if routing.mix == "outputs":
            return self._mix_outputs(tokens, experts, normalised if routing.normalise else probability).view_as(x)
        blends = torch.zeros(len(tokens), self.outer.experts, dtype=x.dtype, device=x.device)
        blends = blends.scatter(1, experts, normalised)
        if routing.mix == "products":
            parts = [partial(part.blended, blends=blends) for part in (*self.inner, self.outer)]
            return self._one(tokens, parts).view_as(x)
        return self._mix_weights(tokens.unsqueeze(1), blends).view_as(x)

    def _mix_outputs(self, x: Tensor, experts: Tensor, weights: Tensor | None) -> Tensor:
        """Σ_k weights[:, k] · FFN_{experts[:, k]}(x): pairs (row, expert) sorted by expert, one matmul per expert."""
        k = experts.shape[1]
        order = experts.flatten().argsort(stable=True)  # (m·k,) pairs by expert
        sizes = experts.flatten().bincount(minlength=self.outer.experts).tolist()
        rows = order if k == 1 else order // k
        one_group = k == 1 and max(sizes) == x.shape[0]  # nothing to sort: the whole batch has one expert
        y = self._grouped(x if one_group else x[rows], sizes)
        if weights is not None:
            scale = weights.flatten()[order].to(y.dtype)
            y = y * scale.view(-1, *[1] * (y.dim() - 1))
        if one_group:
            return y
        if k == 1:
            return torch.zeros_like(y).index_copy(0, rows, y)
        return torch.zeros_like(x).index_add(0, rows, y.to(x.dtype))

    def _grouped(self, x: Tensor, sizes: list[int]) -> Tensor:
        """Run consecutive groups of rows x (m, …, D), sizes[k] of them through expert k."""
        linears = (*self.inner, self.outer)
        if len(set(sizes)) == 1 and all(isinstance(linear, ExpertLinear) for linear in linears):
            grouped = x.reshape(len(sizes), -1, x.shape[-1])  # equal groups: all experts in one batched product
            return self._one(grouped, [linear.all_at_once for linear in linears]).view_as(x)
        per_expert = list(zip(*(linear.each() for linear in linears), strict=True))
        groups = zip(torch.split(x, sizes), per_expert, strict=True)
        outputs = [self._one(group, parts) for group, parts in groups if len(group)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _one(self, x: Tensor, parts: Sequence[Activation]) -> Tensor:
        hidden = self.act(parts[0](x))
        if len(parts) == 3:
            hidden = hidden * parts[1](x)
        return parts[-1](self.dropout(hidden))

    def _mix_weights(self, x: Tensor, blends: Tensor) -> Tensor:
        """Merge the experts of each distinct blend (m, K) or (K,), and run its rows x (m, length, D) through that."""
        if blends.dim() == 1:
            return self._one(x, self._merged(blends))
        distinct, group_of = torch.unique(blends, dim=0, return_inverse=True)
        if len(distinct) == 1:
            return self._one(x, self._merged(blends[0]))
        order = group_of.argsort(stable=True)
        groups = torch.split(order, group_of.bincount().tolist())
        # Each group is merged by a row of `blends` itself, so that it gets a gradient.
        outputs = [self._one(x[group], self._merged(blends[group[0]])) for group in groups]
        return torch.zeros_like(x).index_copy(0, order, torch.cat(outputs))

    def _merged(self, blend: Tensor) -> list[Activation]:  # (K,)
        return [linear.merged(blend) for linear in (*self.inner, self.outer)]


def _named_experts(routing: TaskRouting, *, batch: int, experts: int) -> Tensor:
    named = routing.experts.unsqueeze(1) if routing.experts.dim() == 1 else routing.experts
    if named.dim() != 2 or named.shape[0] != batch or named.is_floating_point():
        got = f"{tuple(routing.experts.shape)}, {routing.experts.dtype}"
        raise InputError(f"experts must be whole numbers, (n,) or (n, k), for a batch of {batch} (got {got})")
    if named.numel() and not 0 <= int(named.min()) <= int(named.max()) < experts:
        raise InputError(f"experts must be numbered 0..{experts - 1} (got {int(named.min())}..{int(named.max())})")
    return named
