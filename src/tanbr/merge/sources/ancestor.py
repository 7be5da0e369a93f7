"""An MoE checkpoint with the dense model that its experts came from as one more expert."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.sources.source import BASE, Joined, MoeCheckpoint
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.family import Block, Piece


class MoeOverAncestor(MoeCheckpoint):
    """The experts of an MoE, and behind them the ancestor's FFNs; the rest of the model is the MoE's."""

    with_base = True

    def __init__(self, checkpoint: Checkpoint, ancestor: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._ancestor = ancestor
        added = {piece.target: self._block(piece) for piece in self.blended}
        self.checkpoint = Joined(checkpoint.path, checkpoint.config, {"": checkpoint, BASE: ancestor})
        self.pieces = [
            piece if piece.weights else replace(piece, blocks=(*piece.blocks, added[piece.target]))
            for piece in self.pieces
        ]
        for at, site in enumerate(self.sites):
            parts = tuple(replace(part, blocks=(*part.blocks, added[part.target])) for part in site.parts)
            self.sites[at] = replace(site, parts=parts)
        del self.blended  # it was worked out without the ancestor
        self.count += 1
        self.names += ["base"]

    def _block(self, piece: Piece) -> Block:
        """Find a piece in the ancestor; refuse one that holds it in another shape."""
        spec = self._ancestor.specs.get(piece.target)
        mine = self.checkpoint.specs[piece.blocks[0][0]]
        if spec is None or (spec.shape, spec.dtype, piece.scale) != (piece.shape, mine.dtype, 1.0):
            has = "it has none" if spec is None else f"it has {spec.shape} {spec.dtype}"
            raise CheckpointError(
                f"{self._ancestor.path} cannot be an expert of {self.checkpoint.path}: for that it needs "
                f"{piece.target} {piece.shape} {mine.dtype}{'' if piece.scale == 1 else ', not scaled'}, and {has}"
            )
        return f"{BASE}:{piece.target}", 0

    def ancestor(self, piece: Piece) -> Tensor:
        """View the ancestor's part of a piece (n,)."""
        return self.one(piece, self.trained)

    def beside(self, folder: str) -> Path:
        """Name a folder for what was measured of the experts and their ancestor."""
        return super().beside(f"{folder}-base")

    def own_files(self, expert: int) -> list[Path]:
        """List the ancestor's files; the others lie side by side."""
        return [file.path for file in self._ancestor.files] if expert == self.trained else []
