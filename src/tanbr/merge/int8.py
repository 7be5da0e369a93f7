"""A dense model in int8: weights per output channel, activations per token.

Activations have 8 bits. Weights have 8 where the CPU's kernels add products up in 32 bits (VNNI, AMX), and 7 elsewhere:
there two products are added in 16, which 8 bits of both overflow, silently, and 255 · 63 · 2 does not. Experts of an
un-merged model can be put in int8 too, so that the two are compared like with like.
"""

import copy
from collections.abc import Collection
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tanbr.moe.layer import Activation, ExpertLinear

Model = TypeVar("Model", bound=nn.Module)


class Int8Linear(nn.Module):
    """A linear map with int8 weights."""

    weight = None  # T5 looks at the type of its weights, if there are any
    values: Tensor  # (in, out) int8: the layout that ONNX Runtime multiplies by, and as good as the other for torch
    scale: Tensor  # (out,)
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        device = linear.weight.device
        self.register_buffer(
            "values", torch.empty(linear.in_features, linear.out_features, dtype=torch.int8).to(device)
        )
        self.register_buffer("scale", torch.empty(linear.out_features, device=device))
        self.register_buffer("bias", _float(linear.bias))
        self.load(linear.weight)

    def load(self, weight: Tensor) -> None:
        """Take over a float weight (out, in)."""
        values, scale = quantise(weight)
        self.values.copy_(values.t())
        self.scale.copy_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return apply(x, self.values, self.scale, self.bias)


class Int8ExpertLinear(nn.Module):
    """K linear maps with int8 weights: `ExpertLinear` for serving."""

    def __init__(self, linear: ExpertLinear) -> None:
        super().__init__()
        biases = [None] * linear.experts if linear.bias is None else linear.bias.unbind(0)
        packed = [(quantise(w), _float(b)) for w, b in zip(linear.weight.unbind(0), biases, strict=True)]
        self._maps = [(values.t().contiguous(), scale, bias) for (values, scale), bias in packed]
        self.experts = linear.experts

    def each(self) -> list[Activation]:
        """List the K maps as functions."""
        return [partial(apply, values=values, scale=scale, bias=bias) for values, scale, bias in self._maps]


def quantised(model: Model, *, only: Collection[str] | None = None) -> Model:
    """Copy a model for serving, with its linear maps in int8, or `only` those of these names.

    All that stays in float is shared with the model.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | ExpertLinear) and only is not None and name not in only:
            memo[id(module)] = module  # what the copy has in place of each module
        elif isinstance(module, nn.Linear):
            memo[id(module)] = Int8Linear(module)
        elif isinstance(module, ExpertLinear):
            memo[id(module)] = Int8ExpertLinear(module)
    return copy.deepcopy(model, memo).eval()


@cache
def weight_bits() -> int:
    """Find out how many bits of a weight this CPU's kernels can add up without overflow: 8 or 7."""
    ones = torch.full((64, 256), 127, dtype=torch.int8)  # the largest integers everywhere: pairs need 17 bits
    return 8 if bool((torch._int_mm(ones, ones.t().contiguous()) == 127 * 127 * 256).all()) else 7


def quantise(weight: Tensor, *, bits: int | None = None) -> tuple[Tensor, Tensor]:
    """Round a weight (out, in) to integers, every row by a scale (out,) of its own."""
    values, largest = weight.detach().float(), 2 ** ((bits or weight_bits()) - 1) - 1
    scale = (values.abs().amax(dim=1) / largest).clamp_min(torch.finfo(torch.float32).tiny)
    return (values / scale[:, None]).round_().to(torch.int8), scale


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().float().clone()


def apply(x: Tensor, values: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Map x (…, in) by values (in, out): every token has the whole range of the integers to itself."""
    rows = x.flatten(0, -2)
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    sums = torch._int_mm((rows * (127 / largest)).round_().to(torch.int8), values)
    result = sums.float().mul_(scale).mul_(largest / 127)
    result = result if bias is None else result.add_(bias)
    return result.view(*x.shape[:-1], -1)
