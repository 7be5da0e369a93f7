"""What an expert source is: a dense model in pieces, of which some have K experts, all of them in mapped files.

A source says where each expert's share of a tensor lies; merge methods read the experts through it. It reads headers:
what an expert holds is looked at when a merge asks for it, piece by piece.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.blend import is_finite, weighted_sum
from tanbr.merge.sources.peft_folder import Adapter
from tanbr.moe.checkpoint import Checkpoint, TensorFile, TensorSpec, digests_of, understood
from tanbr.moe.families import family_of, read_settings
from tanbr.moe.family import Block, Family, Piece, Settings, Site

ROWS = 256  # of a matrix, that tell whether it descends from another
BASE = "base/"  # the base among the members of a joined checkpoint: no path ends like this


class ExpertSource:
    """The K experts of a model; a new source sets these, and overrides how experts are read that are no blocks."""

    checkpoint: Checkpoint  # all files that a merge reads, as one
    family: Family  # what becomes of the tensors' names and of the configuration
    config: Settings  # of the model that the experts are
    sites: list[Site]  # what `inspect` reports on
    pieces: list[Piece]  # of the whole dense model
    count: int  # K
    with_base: bool = False  # whether the last expert is what the others came from
    names: list[str]  # (K,) what to call the experts
    companions: Sequence[Path]  # folders with a tokenizer and the like; a later one wins
    expert_tasks: tuple[str, ...] = ()  # what each that was trained was trained for, where that is known beside a card
    expert_labels: tuple[tuple[str, ...], ...] = ()  # (K,) what each one's own head answers
    weights: tuple[float, ...] = ()  # (K,) the blend that a list of experts asks for
    method: str | None = None  # how a list of experts asks to merge them
    measured: Path | None = None  # folder for what is measured of the experts, where there is none beside them
    origin: Mapping[str, Any] | None = None  # arguments that `tanbr.open` finds these experts with again

    @property
    def trained(self) -> int:
        """How many experts were trained: all but the base."""
        return self.count - self.with_base

    @cached_property
    def blended(self) -> list[Piece]:
        """The pieces that change with the blend."""
        return [piece for piece in self.pieces if piece.weights is None]

    @property
    def unmerged(self) -> list[TensorSpec]:
        """The tensors that the experts answer with when nothing is merged."""
        return list(self.checkpoint.specs.values())

    def own_files(self, expert: int) -> list[Path]:  # noqa: ARG002
        """List the files that say what one expert is; none where experts lie side by side in the same files."""
        return []

    def beside(self, folder: str) -> Path:
        """Name a folder for what was measured of these experts: beside them, or where a server keeps it."""
        name = f"{folder}-base" if self.with_base else folder
        own = self.checkpoint.path / name
        return own if self.measured is None or own.is_dir() else self.measured / name

    def check(self, expert: int) -> None:
        """Refuse an expert that holds NaN or infinity, before it gets near a model in use."""
        for piece in self.blended:
            name = piece.blocks[expert][0]
            if not is_finite(ExpertSource.one(self, piece, expert)):
                raise CheckpointError(f"{name} of {self.checkpoint.path} holds NaN or infinity: it is damaged")

    def ancestor(self, piece: Piece) -> Tensor | None:  # noqa: ARG002
        """View what a piece's experts came from (n,); None if that is not known."""
        return None

    def base(self, piece: Piece) -> Tensor:
        """Give what a piece's experts came from (n,), as `rows` does; their mean where it is not known."""
        origin = self.ancestor(piece)
        if origin is None:
            return self.rows(piece, range(self.count)).mean(dim=0)
        return origin.to(torch.promote_types(origin.dtype, torch.float32))

    def average(self, out: Tensor, piece: Piece, weights: Sequence[float]) -> None:
        """Set `out` to the weighted sum (K,) of a piece's experts, at the speed of reading those above 0."""
        weighted_sum(out, self.checkpoint, piece.blocks, [weight * piece.scale for weight in weights])

    def one(self, piece: Piece, expert: int) -> Tensor:
        """View one expert of a piece (n,), in its own type; nothing is read before it is used."""
        return self.checkpoint.blocks([piece.blocks[expert]], math.prod(piece.shape))[0]

    def rows(self, piece: Piece, chosen: Sequence[int], part: slice = slice(None)) -> Tensor:
        """Read a part of the chosen experts of a piece as rows (r, n) of float32 (float64 stays)."""
        found = [self.one(piece, expert)[part] for expert in chosen]
        return torch.stack([row.to(torch.promote_types(row.dtype, torch.float32)) for row in found])

    def differ(self, piece: Piece) -> bool:
        """Tell whether any two experts of a piece differ: where none do, every blend is each of them."""
        first = self.one(piece, 0)
        return any(not torch.equal(first, self.one(piece, expert)) for expert in range(1, self.count))

    def kinship(self) -> list[float] | None:
        """Cosine (K,) of each expert's matrices with the ancestor's, by their first rows; None if it is not known."""
        cosines: list[Tensor] = []
        for piece in self.blended:
            ancestor = self.ancestor(piece) if len(piece.shape) > 1 else None
            if ancestor is not None:
                width = math.prod(piece.shape[1:])
                part = slice(0, min(ROWS, piece.shape[0]) * width)
                rows = self.rows(piece, range(self.count), part).view(self.count, -1, width)
                origin = ancestor[part].to(rows.dtype).view(-1, width)
                cosines.append(torch.cosine_similarity(rows, origin, dim=2).mean(dim=1))  # (K,)
        return torch.stack(cosines).mean(dim=0).tolist() if cosines else None


class MoeCheckpoint(ExpertSource):
    """Experts that lie side by side in one MoE checkpoint; its family knows where."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.family = family_of(checkpoint.config)
        check_depth(checkpoint)
        self.config = read_settings(checkpoint.config)
        with understood(checkpoint):
            self.sites = self.family.sites(checkpoint, self.config)
            self.pieces = self.family.plan(checkpoint, self.config, self.sites)
        self.count = self.config[self.family.count]
        self.names = [str(k) for k in range(self.count)]
        self.companions = (checkpoint.path,)


class Joined(Checkpoint):
    """Files of several folders as one checkpoint; tensor `name` of member `key` is called `key:name`, or `name`."""

    def __init__(self, path: Path, config: dict[str, Any], members: Mapping[str, Checkpoint | Adapter]) -> None:
        self.path = path
        self.config = config
        self.members = dict(members)
        self.files: list[TensorFile] = []
        self.specs: dict[str, TensorSpec] = {}
        for key, member in self.members.items():
            offset = len(self.files)
            for spec in (spec for file in member.files for spec in file.specs):
                name = f"{key}:{spec.name}" if key else spec.name
                self.specs[name] = replace(spec, name=name, file=offset + spec.file)
            self.files += member.files

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file, by member."""
        return {
            f"{number}:{member.path.resolve().name}/{name}": digest
            for number, member in enumerate(self.members.values())
            for name, digest in digests_of(member.path / member.settings_file, member.files).items()
        }


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

    def own_files(self, expert: int) -> list[Path]:
        """List the ancestor's files; the others lie side by side."""
        return [file.path for file in self._ancestor.files] if expert == self.trained else []


def check_depth(checkpoint: Checkpoint) -> None:
    """Refuse a configuration of more layers than there are tensors: a list of them may be all the memory there is."""
    for key, value in checkpoint.config.items():
        if "layers" in key and isinstance(value, int | float) and not value <= len(checkpoint.specs):
            raise CheckpointError(f"config.json of {checkpoint.path} says {key} {value}, more than it has tensors")
