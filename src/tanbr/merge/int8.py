"""A dense model in int8: weights per output channel, activations per call; offered with its measured loss, or not.

Activations keep 7 of their 8 bits: on CPUs without VNNI the kernels' 16-bit sums overflow with 8, silently.
Experts of an un-merged model can be put in int8 too, so that the two are compared like with like.
"""

import copy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tanbr.errors import InputError
from tanbr.moe.layer import Activation, ExpertLinear

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Int8Loss:
    """How far an int8 model is from the model it was made of, on given inputs."""

    relative_error: float  # ‖logits − logits₈‖ / ‖logits‖
    agreement: float  # share of positions where the largest logit is the same one
    positions: int


class Int8Linear(nn.Module):
    """A linear map with int8 weights."""

    weight = None  # T5 looks at the type of its weights, if there are any

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.load(linear)

    def load(self, linear: nn.Linear) -> None:
        """Take over another map's values."""
        self._packed = _packed(linear.weight, linear.bias)
        self.weights = linear.weight.numel()

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return _apply(x, self._packed)


class Int8ExpertLinear(nn.Module):
    """K linear maps with int8 weights: `ExpertLinear` for serving."""

    def __init__(self, linear: ExpertLinear) -> None:
        super().__init__()
        biases = [None] * linear.experts if linear.bias is None else linear.bias.unbind(0)
        self._packed = [_packed(w, b) for w, b in zip(linear.weight.unbind(0), biases, strict=True)]
        self.experts = linear.experts

    def each(self) -> list[Activation]:
        """List the K maps as functions."""
        return [partial(_apply, packed=packed) for packed in self._packed]


def quantised(model: Model) -> Model:
    """Copy a model for serving, with every linear map in int8; embeddings and norms stay as they are."""
    if "x86" not in torch.backends.quantized.supported_engines:
        raise InputError("int8 needs torch's x86 kernels, which this build of torch does not have")
    kept = {id(module): module for module in model.modules() if isinstance(module, nn.Linear | ExpertLinear)}
    memo: dict[int, Any] = {  # what the copy has in place of each module: float weights are never copied
        key: Int8ExpertLinear(module) if isinstance(module, ExpertLinear) else Int8Linear(module)
        for key, module in kept.items()
    }
    return copy.deepcopy(model, memo).eval()


def refresh(int8_model: nn.Module, model: nn.Module) -> None:
    """Bring an int8 model up to date with the model it was made of, after a merge."""
    for name, module in int8_model.named_modules():
        if isinstance(module, Int8Linear):
            linear = model.get_submodule(name)
            if not isinstance(linear, nn.Linear):
                raise InputError(
                    f"{name} is no linear map in {type(model).__name__}; refresh from the model it was made of"
                )
            module.load(linear)


@torch.inference_mode()
def measure(model: nn.Module, int8_model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Int8Loss:
    """Compare the logits of the two on batches of the model's own inputs."""
    error = norm = same = positions = 0.0
    for batch in batches:
        exact, rounded = model(**batch).logits.float(), int8_model(**batch).logits.float()
        error += float((exact - rounded).square().sum())
        norm += float(exact.square().sum())
        same += float((exact.argmax(-1) == rounded.argmax(-1)).sum())
        positions += exact[..., 0].numel()
    if not positions:
        raise InputError("the loss of int8 is measured on data: give at least one batch")
    return Int8Loss((error / norm) ** 0.5, same / positions, int(positions))


def offered(
    model: Model, batches: Iterable[Mapping[str, Tensor]], *, least_agreement: float = 0.98
) -> tuple[Model, Int8Loss]:
    """Put a model in int8 if it still answers alike on the given batches; InputError if it does not."""
    int8_model = quantised(model)
    loss = measure(model, int8_model, batches)
    if not loss.agreement >= least_agreement:
        raise InputError(
            f"in int8 this model gives the same answer at {loss.agreement:.1%} of {loss.positions} positions, "
            f"below the {least_agreement:.1%} asked for; serve it in float32"
        )
    return int8_model, loss


def _packed(weight: Tensor, bias: Tensor | None) -> Any:
    values = weight.detach().float()
    scales = (values.abs().amax(dim=1).double() / 127).clamp_min(torch.finfo(torch.float32).tiny)
    zeros = torch.zeros_like(scales, dtype=torch.int64)
    with warnings.catch_warnings():
        # torch means to drop quantised tensors, but its int8 kernels take their weights in no other form yet
        warnings.simplefilter("ignore", UserWarning)
        stored = torch.quantize_per_channel(values, scales, zeros, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(stored, None if bias is None else bias.detach().float())


def _apply(x: Tensor, packed: Any) -> Tensor:
    result: Tensor = torch.ops.quantized.linear_dynamic(x, packed, True)
    return result
