"""What a merge method is, and what it may read of the experts: one tensor of the dense model at a time, for any blend.

The plain way to write one is a function of the experts' weights, whose keyword arguments are its settings:

    @merge_method("median")
    def median(rows: Tensor, weights: Tensor, *, gain: float = 1.0) -> Tensor:  # (r, n), (r, 1) → (n,)
        return gain * rows.median(dim=0).values

A third argument, `base` (n,), is what the experts came from: the ancestor's weight where the source of the experts
knows it, and the mean of all K experts elsewhere. A method that must know more is a dataclass derived from `Method`,
whose fields after the experts are its settings.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, make_dataclass
from inspect import signature
from typing import Annotated, Any, ClassVar, TypeAlias, get_type_hints

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from tanbr.merge.sources.source import ExpertSource
from tanbr.moe.checkpoint import TensorFile
from tanbr.moe.family import Piece

Scale: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # of differences from the base


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


def merge_method(name: str) -> Callable[[Callable[..., Tensor]], type[Method]]:
    """Make a method of a function that combines the blend's experts, a whole tensor at a time."""

    def made(combine: Callable[..., Tensor]) -> type[Method]:
        hints = get_type_hints(combine, include_extras=True)
        given = signature(combine).parameters
        settings = [one for one in given.values() if one.kind is one.KEYWORD_ONLY]

        def fill(self: Method, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
            chosen = [expert for expert, weight in enumerate(blend) if weight]
            rows = self.experts.rows(piece, chosen)
            weights = torch.tensor([[blend[expert]] for expert in chosen]).to(rows)
            more = {one.name: getattr(self, one.name) for one in settings}
            if "base" in given:
                more["base"] = self.experts.base(piece)
            out.copy_((combine(rows, weights, **more) * piece.scale).view(out.shape))

        about = {"name": name, "fill": fill, "__doc__": combine.__doc__, "__module__": combine.__module__}
        own = [(one.name, hints[one.name], one.default) for one in settings]
        return make_dataclass(combine.__name__, own, bases=(Method,), namespace=about, eq=False)

    return made
