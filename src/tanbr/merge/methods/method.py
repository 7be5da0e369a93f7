"""What a merge method is, and what it may read of the experts: one tensor of the dense model at a time, for any blend.

The plain way to write one is a function of the experts' weights, whose keyword arguments are its settings:

    @merge_method("median")
    def median(rows: Tensor, weights: Tensor, *, gain: float = 1.0) -> Tensor:  # (r, n), (r, 1) → (n,)
        return gain * rows.median(dim=0).values

A method that must know more is a dataclass derived from `Method`, whose fields after the experts are its settings.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, make_dataclass
from inspect import signature
from typing import Any, ClassVar, get_type_hints

import torch
from pydantic import ConfigDict
from torch import Tensor

from tanbr.merge.sources.source import ExpertSource
from tanbr.moe.checkpoint import TensorFile
from tanbr.moe.family import Piece

CHUNK = 1 << 16  # weights of each expert that are in memory at a time


@dataclass(eq=False)
class Method(ABC):
    """How a blend of experts becomes one tensor."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    experts: ExpertSource

    name: ClassVar[str]

    @abstractmethod
    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Write the merge of a piece by a blend (K,), times the piece's scale, into `out` (piece.shape)."""

    @property
    def files(self) -> list[TensorFile]:
        """What it reads beside the experts."""
        return []

    @property
    def facts(self) -> dict[str, Any]:
        """What a result depends on beyond name and settings."""
        return {}

    def __str__(self) -> str:
        """The name with what settings differ from their defaults, as `methods.choose` reads it."""
        values = ((one, getattr(self, one.name)) for one in fields(self)[1:])
        return ":".join([self.name, *(f"{one.name}={value}" for one, value in values if value != one.default)])


def active(blend: Sequence[float]) -> tuple[list[int], Tensor]:
    """Give the r experts of a blend (K,) that have weight, and their weights (r, 1)."""
    chosen = [expert for expert, weight in enumerate(blend) if weight]
    return chosen, torch.tensor([[blend[expert]] for expert in chosen])


def fill_by_chunks(out: Tensor, merged: Callable[[slice], Tensor]) -> None:
    """Write `out` from what `merged` gives for each chunk of its elements, wherever and however `out` lies."""
    direct = out.is_contiguous() and out.device.type == "cpu"
    flat = out.view(-1) if direct else torch.empty(out.numel())
    for at in range(0, out.numel(), CHUNK):
        part = slice(at, at + CHUNK)
        flat[part] = merged(part)
    if not direct:
        out.copy_(flat.view(out.shape))


def merge_method(name: str) -> Callable[[Callable[..., Tensor]], type[Method]]:
    """Make a method of a function that combines the blend's experts, weight by weight."""

    def made(combine: Callable[..., Tensor]) -> type[Method]:
        hints = get_type_hints(combine, include_extras=True)
        given = [one for one in signature(combine).parameters.values() if one.kind is one.KEYWORD_ONLY]

        def fill(self: Method, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
            chosen, weights = active(blend)
            settings = {one.name: getattr(self, one.name) for one in given}

            def merged(part: slice) -> Tensor:
                rows = self.experts.rows(piece, chosen, part)
                return combine(rows, weights.to(rows), **settings) * piece.scale

            fill_by_chunks(out, merged)

        settings = [(one.name, hints[one.name], one.default) for one in given]
        about = {"name": name, "fill": fill, "__doc__": combine.__doc__, "__module__": combine.__module__}
        return make_dataclass(combine.__name__, settings, bases=(Method,), namespace=about, eq=False)

    return made
