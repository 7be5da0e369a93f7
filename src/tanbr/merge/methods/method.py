"""What a merge method is, and what it may read of the experts: one tensor of the dense model at a time, for any blend.

The plain way to write one is a function of the experts' weights, whose keyword arguments are its settings:

    @merge_method("median", cost="reads the experts of the blend once")
    def median(rows: Tensor, weights: Tensor, *, gain: float = 1.0) -> Tensor:  # (r, n), (r, 1) → (n,)
        return gain * rows.median(dim=0).values

A method that must know more than that is a dataclass derived from `Method`. Its fields, after the experts, are its
settings; it says what it needs beyond the experts and what a merge costs, and it fills one piece at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, make_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import torch
from pydantic import ConfigDict
from torch import Tensor

from tanbr.merge.blend import check_finite, weighted_sum
from tanbr.moe.checkpoint import Checkpoint, TensorFile
from tanbr.moe.family import Piece

CHUNK = 1 << 16  # weights of each expert that are in memory at a time


@dataclass(frozen=True, eq=False)
class Experts:
    """What a method may read of a checkpoint's experts."""

    checkpoint: Checkpoint
    pieces: Sequence[Piece]  # those that change with the blend
    count: int  # K
    fingerprint: Callable[[], str]  # SHA-256 of the weights

    @property
    def path(self) -> Path:
        """The checkpoint's folder."""
        return self.checkpoint.path

    def beside(self, folder: str) -> Path:
        """Name a folder for what was measured of these experts, beside them."""
        return self.path / folder

    def check(self, expert: int) -> None:
        """Refuse an expert that holds NaN or infinity."""
        check_finite(self.checkpoint, self.pieces, expert)

    def ancestor(self, piece: Piece) -> Tensor | None:  # noqa: ARG002
        """View what a piece's experts came from (n,); None if that is not known."""
        return None

    def average(self, out: Tensor, piece: Piece, weights: Sequence[float]) -> None:
        """Set `out` to the weighted sum (K,) of a piece's experts, at the speed of reading those above 0."""
        weighted_sum(out, self.checkpoint, piece.blocks, [weight * piece.scale for weight in weights])

    def one(self, piece: Piece, expert: int) -> Tensor:
        """View one expert of a piece (n,), in its own type; nothing is read before it is used."""
        return self.checkpoint.blocks([piece.blocks[expert]], torch.Size(piece.shape).numel())[0]

    def differ(self, piece: Piece) -> bool:
        """Tell whether any two experts of a piece differ: where none do, every blend is each of them."""
        first = self.one(piece, 0)
        return any(not torch.equal(first, self.one(piece, expert)) for expert in range(1, self.count))

    def rows(self, piece: Piece, chosen: Sequence[int], part: slice = slice(None)) -> Tensor:
        """Read a part of the chosen experts of a piece as rows (r, n) of float32 (float64 stays)."""
        found = [self.one(piece, expert)[part] for expert in chosen]
        return torch.stack([row.to(torch.promote_types(row.dtype, torch.float32)) for row in found])


@dataclass(eq=False)
class Method(ABC):
    """How a blend of experts becomes one tensor."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    experts: Experts

    name: ClassVar[str]
    needs: ClassVar[str] = "nothing"  # beyond the experts
    cost: ClassVar[str]  # of one merge

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
        changed = [f"{one.name}={getattr(self, one.name)}" for one in fields(self)[1:] if self._differs(one)]
        return ":".join([self.name, *changed])

    def _differs(self, one: Any) -> bool:
        return bool(getattr(self, one.name) != one.default)


def fill_by_chunks(out: Tensor, merged: Callable[[slice], Tensor]) -> None:
    """Write `out` from what `merged` gives for each chunk of its elements, wherever and however `out` lies."""
    direct = out.is_contiguous() and out.device.type == "cpu"
    flat = out.view(-1) if direct else torch.empty(out.numel())
    for at in range(0, out.numel(), CHUNK):
        part = slice(at, at + CHUNK)
        flat[part] = merged(part)
    if not direct:
        out.copy_(flat.view(out.shape))


def merge_method(name: str, *, cost: str) -> Callable[[Callable[..., Tensor]], type[Method]]:
    """Make a method of a function that combines the blend's experts, weight by weight."""

    def made(combine: Callable[..., Tensor]) -> type[Method]:
        hints = get_type_hints(combine, include_extras=True)
        given = [one for one in signature(combine).parameters.values() if one.kind is one.KEYWORD_ONLY]

        def fill(self: Method, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
            chosen = [expert for expert, weight in enumerate(blend) if weight]
            weights = torch.tensor([[blend[expert]] for expert in chosen])  # (r, 1)
            settings = {one.name: getattr(self, one.name) for one in given}

            def merged(part: slice) -> Tensor:
                rows = self.experts.rows(piece, chosen, part)
                return combine(rows, weights.to(rows), **settings) * piece.scale

            fill_by_chunks(out, merged)

        settings = [(one.name, hints[one.name], one.default) for one in given]
        about = {"name": name, "cost": cost, "fill": fill, "__doc__": combine.__doc__, "__module__": combine.__module__}
        return make_dataclass(combine.__name__, settings, bases=(Method,), namespace=about, eq=False)

    return made
