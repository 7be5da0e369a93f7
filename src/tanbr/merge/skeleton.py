"""The dense model before it is filled: the plan of its pieces, and a model without values that they add up to."""

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from itertools import product
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.sources.source import ExpertSource
from tanbr.moe.checkpoint import TensorSpec, understood
from tanbr.moe.families import carried_over
from tanbr.moe.family import Piece

BUFFER = 1 << 24  # numbers of a table that a model computes for itself, of positions for one
# In memory, a class with one expert fuses what is apart on disk: experts.gate_up_proj (1, 2F, D), gate first.
FUSED = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}


class DensePlan:
    """The dense model that a source's pieces fill: its configuration, its tensors, and what changes with the blend."""

    def __init__(self, source: ExpertSource) -> None:
        self.source = source
        self.pieces, self.blended = source.pieces, source.blended  # all, and what changes with the blend
        with understood(source.checkpoint):
            self.shapes, self._width = shapes_of(self.pieces)

    def targets(self, *, changing: bool = False) -> dict[str, list[Piece]]:
        """List the dense tensors, or those that change with the blend, with the pieces that fill them."""
        grouped: dict[str, list[Piece]] = {}
        for piece in self.blended if changing else self.pieces:
            grouped.setdefault(piece.target, []).append(piece)
        return grouped

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """The dense tensors by name, each of the type of what it is made of."""
        made_of = {piece.target: self.source.checkpoint.specs[piece.blocks[0][0]].dtype for piece in self.pieces}
        return {name: TensorSpec(name, dtype, self.shapes[name]) for name, dtype in made_of.items()}

    @cached_property
    def padded(self) -> frozenset[str]:
        """Dense tensors that the pieces do not fill up: the rest of them is 0."""
        covered: dict[str, int] = {}
        for piece in self.pieces:
            covered[piece.target] = covered.get(piece.target, 0) + math.prod(piece.shape)
        return frozenset(name for name, shape in self.shapes.items() if covered[name] < math.prod(shape))

    def config(self) -> Any:
        """Build the dense model's configuration, with its class in `architectures`."""
        family, settings = self.source.family, self.source.config
        changed = family.settings(settings) | dict.fromkeys(family.width, self._width)
        config = AutoConfig.for_model(**carried_over(settings, family.dense) | changed)
        config.architectures = [self._architecture()]
        return config

    def _architecture(self) -> str:
        before, after = self.source.family.prefix
        named = self.source.config.get("architectures")
        if not (isinstance(named, list) and len(named) == 1 and str(named[0]).startswith(before)):
            raise CheckpointError(f"config.json must name one {before}… class in architectures (got {named})")
        return after + str(named[0]).removeprefix(before)


def shapes_of(pieces: Iterable[Piece]) -> tuple[dict[str, tuple[int, ...]], int]:
    """Work out the shape of every dense tensor, and the number of hidden units that all FFNs are padded to."""
    shapes: dict[str, list[int]] = {}
    padded: dict[str, int] = {}
    for piece in pieces:
        shape = shapes.setdefault(piece.target, list(piece.shape))
        if piece.shape:
            shape[piece.axis] = max(shape[piece.axis], piece.start + piece.shape[piece.axis])
        # gate and up in one tensor count each unit twice, and so are not padded (they never need it)
        if piece.unit_axis is not None and "gate_up" not in piece.target:
            padded[piece.target] = piece.unit_axis
    width = max((shapes[target][axis] for target, axis in padded.items()), default=0)
    for target, axis in padded.items():
        shapes[target][axis] = width
    return {target: tuple(shape) for target, shape in shapes.items()}, width


def skeleton(plan: DensePlan, *, device: str = "cpu") -> Any:
    """Build the dense model with no values in it, first without memory; what the tensors do not fit is refused."""
    with understood(plan.source.checkpoint):
        config = plan.config()
        model = _built(config, "meta")
        _check(model, plan)
        model = model if device == "meta" else _built(config, device)
        untie(model, plan.shapes)
    return model


def _built(config: Any, device: str) -> Any:
    with no_init_weights(), torch.device(device):
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=config.dtype)
    model.tie_weights()
    return model


def _check(model: Any, plan: DensePlan) -> None:
    path, filled = plan.source.checkpoint.path, set()
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
    for name, buffer in model.named_buffers():
        if buffer.numel() > max(BUFFER, plan.source.checkpoint.nbytes):
            raise CheckpointError(f"config.json of {path} asks for {buffer.numel()} numbers as {name}; correct it")


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

    The output table gets the new tensor; encoder and decoder still share the input table.
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
    for get, name in product((model.get_parameter, model.get_buffer), names):
        with suppress(AttributeError):
            return get(name)
    raise InputError(f"{type(model).__name__} has no {target}; merge into a model that dense() gives")


def _fused(target: str) -> re.Match[str] | None:
    return re.fullmatch(r"(.+\.experts)\.0\.(gate|up|down)_proj\.weight", target)
