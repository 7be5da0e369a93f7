"""What a merge method is: how the experts of one piece of a model become one tensor, for any blend.

A method is a dataclass in a file of this folder. Its fields, after the experts, are its settings; it says what it
needs beyond the experts and what a merge costs, and it fills one piece at a time:

    @dataclass(eq=False)
    class Median(Method):
        name = "median"
        cost = "reads the experts of the blend once"

        def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
            rows = self.experts.rows(piece, [k for k, weight in enumerate(blend) if weight])  # (r, n)
            out.copy_(rows.float().median(dim=0).values.view(out.shape) * piece.scale)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict
from torch import Tensor

from tanbr.merge.blend import check_finite, weighted_sum
from tanbr.moe.checkpoint import Checkpoint, TensorFile
from tanbr.moe.family import Piece


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
