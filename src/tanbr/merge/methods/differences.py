"""What methods share that work on the experts' differences from a common base, and not on the experts themselves.

    W(x) = W₀ + scale · combined(W_k − W₀, x_k)

W₀ is the ancestor's weight where a folder with the dense ancestor is named (`base=FOLDER`), or where the source of the
experts knows it: that of fine-tuned checkpoints does, an MoE checkpoint does not. Without one the mean of all K experts
stands for it, from which they differ in what each learned.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.methods.method import Method, fill_by_chunks
from tanbr.moe.checkpoint import Checkpoint, TensorFile
from tanbr.moe.family import Piece


@dataclass(frozen=True)
class Chunk:
    """Which weights a method is at."""

    piece: Piece
    experts: tuple[int, ...]  # (r,) those of the blend
    at: int  # element of the piece


@dataclass(eq=False)
class WithBase(Method):
    """A method that knows what its experts came from."""

    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    base: str = ""  # folder of the dense ancestor

    def __post_init__(self) -> None:
        self.ancestor = Checkpoint(Path(self.base)) if self.base else None
        for piece in self.experts.pieces if self.ancestor else ():
            spec = self.ancestor.specs.get(piece.target) if self.ancestor else None
            if spec is None or spec.shape != piece.shape:
                raise CheckpointError(
                    f"{self.base} is no ancestor of {self.experts.path}: {piece.target} must be {piece.shape} "
                    f"(got {'none' if spec is None else spec.shape}); name the dense model that the experts came from"
                )

    def origin(self, piece: Piece) -> Tensor | None:
        """View the ancestor's weights of a piece (n,); None if the experts' mean stands for them."""
        return self.experts.ancestor(piece) if self.ancestor is None else self.ancestor.tensor(piece.target).view(-1)

    @property
    def files(self) -> list[TensorFile]:
        """The ancestor's files."""
        return [] if self.ancestor is None else self.ancestor.files


@dataclass(eq=False)
class OfDifferences(WithBase):
    """A method that combines differences, weight by weight."""

    @abstractmethod
    def combined(self, differences: Tensor, weights: Tensor, chunk: Chunk) -> Tensor:
        """Combine the differences (r, n) of a chunk's experts, with their weights (r, 1), into one (n,)."""

    def fill(self, out: Tensor, piece: Piece, blend: Sequence[float]) -> None:
        """Merge chunk by chunk."""
        chosen = tuple(expert for expert, weight in enumerate(blend) if weight)
        weights = torch.tensor([[blend[expert]] for expert in chosen])  # (r, 1)

        def merged(part: slice) -> Tensor:
            base, differences = self.differences(piece, chosen, part)
            chunk = Chunk(piece, chosen, part.start)
            return base + self.scale * self.combined(differences, weights.to(base), chunk)

        fill_by_chunks(out, merged)

    def differences(self, piece: Piece, chosen: Sequence[int], part: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Read a part of the base (n,), and how the chosen experts differ from it (r, n)."""
        origin = self.origin(piece)
        if origin is None:
            rows = self.experts.rows(piece, range(self.experts.count), part).mul_(piece.scale)
            base = rows.mean(dim=0)
            rows = rows if len(chosen) == len(rows) else rows[list(chosen)]
        else:
            rows = self.experts.rows(piece, chosen, part).mul_(piece.scale)
            base = origin[part].to(rows.dtype)
        return base, rows.sub_(base)
