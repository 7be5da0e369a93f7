"""The dense model before it is filled: built without values, and checked to be what the plan's pieces add up to."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.plan import DensePlan

# In memory, a class with one expert fuses what is apart on disk: experts.gate_up_proj (1, 2F, D), gate first.
FUSED = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}


def skeleton(plan: DensePlan, path: Path, *, device: str = "cpu") -> Any:
    """Build the dense transformers model with no values in it; a tensor too few, too many or misshapen is refused."""
    config = plan.config()
    with no_init_weights(), torch.device(device):
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=config.dtype)
    model.tie_weights()
    filled = set()
    for target, shape in plan.shapes.items():
        try:
            tensor = locate(model, target)
        except InputError:
            raise CheckpointError(f"{path} holds {target}, for which {type(model).__name__} has no place") from None
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{path}: {target} is {shape}, but by config.json it must be {tuple(tensor.shape)}")
        filled.add(id(_holder(model, target)))
    empty = [name for name, parameter in model.named_parameters() if id(parameter) not in filled]
    if empty:
        raise CheckpointError(f"{path} lacks {empty[0]}; fetch the whole checkpoint again")
    untie(model, plan.shapes)
    return model


def locate(model: nn.Module, target: str) -> Tensor:
    """Find the tensor of a live dense model that holds `target`."""
    holder = _holder(model, target)
    found = _fused(target)
    if found is None or holder.dim() < 3:
        return holder
    rows = holder[0]
    half = rows.shape[0] // 2
    return {"gate": rows[:half], "up": rows[half:], "down": rows}[found[2]]


def untie(model: Any, targets: Iterable[str]) -> None:
    """Give each of the targets a tensor of its own: T5's configuration ties embeddings that a checkpoint has apart.

    The output table is the one that gets a new tensor: encoder and decoder go on sharing the input table.
    """
    head = model.get_output_embeddings()
    last = next((f"{name}." for name, module in model.named_modules() if module is head), None)
    seen: set[int] = set()
    for target in sorted(targets, key=lambda target: last is not None and target.startswith(last)):
        holder = _holder(model, target)
        if id(holder) in seen and _fused(target) is None:
            module, _, name = target.rpartition(".")
            setattr(model.get_submodule(module), name, nn.Parameter(torch.empty_like(holder)))
        seen.add(id(holder))


def _holder(model: nn.Module, target: str) -> Tensor:
    found = _fused(target)
    names = [target, f"{found[1]}.{FUSED[found[2]]}"] if found else [target]
    for get in (model.get_parameter, model.get_buffer):
        for name in names:
            try:
                return get(name)
            except AttributeError:
                continue
    raise InputError(
        f"{type(model).__name__} has no {target}; merge into the model that dense() gives, or one of its class"
    )


def _fused(target: str) -> re.Match[str] | None:
    return re.fullmatch(r"(.+\.experts)\.0\.(gate|up|down)_proj\.weight", target)
