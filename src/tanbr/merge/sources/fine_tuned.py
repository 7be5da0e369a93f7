"""Experts that are whole models: K checkpoints, fine-tuned from one base.

Every tensor that differs between them is blended, whatever it is: FFNs, attention, norms, embeddings, heads. What is
equal in all is copied. With `blend_only="ffn"` everything but FFNs comes from the base, except what it lacks: heads.
The base is the ancestor that merge methods on differences take, and that `inspect` compares each expert with.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tanbr.errors import CheckpointError, InputError
from tanbr.merge.methods import Experts
from tanbr.merge.sources.alike import check_alike
from tanbr.merge.sources.joined import Joined, member_of
from tanbr.merge.sources.source import ExpertSource, at_least_two
from tanbr.moe.checkpoint import Checkpoint, TensorSpec
from tanbr.moe.families import read_settings
from tanbr.moe.family import UNMERGEABLE, Block, Family, Fold, Part, Piece, Site

BlendOnly: TypeAlias = Literal["all", "ffn"]

BASE = "base"  # the member of the joined checkpoint that is no expert
FFN = re.compile(  # as transformers' architectures name them
    r"(^|\.)(mlp|ffn|feed_forward|DenseReluDense|fc1|fc2|intermediate|(?<!attention\.)output\.dense)\."
)
GLANCE = 1 << 16  # elements that are compared first: what was trained differs in them


@dataclass(frozen=True, eq=False)
class WithAncestor(Experts):
    """Experts whose ancestor is known."""

    ancestors: dict[str, Block]  # target → where the base has it

    def ancestor(self, piece: Piece) -> Tensor | None:
        """View the base's tensor of a piece (n,); None if the base has none."""
        block = self.ancestors.get(piece.target)
        return None if block is None else self.checkpoint.tensor(block[0]).view(-1)


class FineTuned(ExpertSource):
    """K fine-tuned dense checkpoints of one architecture, and their base."""

    def __init__(self, base: Checkpoint, experts: Sequence[Checkpoint], *, blend_only: BlendOnly = "all") -> None:
        at_least_two([expert.path for expert in experts])
        if blend_only not in get_args(BlendOnly):
            raise InputError(f"blend_only must be one of {', '.join(get_args(BlendOnly))} (got {blend_only!r})")
        check_alike(base, experts)
        first = experts[0]
        self.count = len(experts)
        self.config = read_settings(first.config)
        self.family = dense_family(first.config["model_type"])
        self._names = keys = [str(expert.path) for expert in experts]
        members = {BASE: member_of(base)} | {key: member_of(expert) for key, expert in zip(keys, experts, strict=True)}
        self.checkpoint = Joined(base.path, first.config, members)
        self.companions = (first.path, base.path)
        self._ancestors = _ancestors(base, first)
        if not self._ancestors:
            raise CheckpointError(
                f"{base.path} has no tensor in common with {first.path}: it is not what that came from"
            )
        self.pieces = [self._piece(spec, keys, blend_only) for name, spec in first.specs.items() if not _computed(name)]
        blended = [piece for piece in self.pieces if piece.weights is None]
        if not blended:
            what = "no FFN of these experts can be told by its name" if blend_only == "ffn" else "all experts are equal"
            raise CheckpointError(f"there is nothing to blend in {first.path} and the others: {what}")
        self.sites = sites_of(blended)

    def _piece(self, spec: TensorSpec, keys: Sequence[str], blend_only: BlendOnly) -> Piece:
        ancestor = self._ancestors.get(spec.name)
        if blend_only == "ffn" and ancestor is not None and not FFN.search(spec.name):
            return Piece(spec.name, spec.shape, (ancestor,), (1.0,))
        blocks = tuple((f"{key}:{spec.name}", 0) for key in keys)
        if not self._differ(blocks):
            return Piece(spec.name, spec.shape, blocks[:1], (1.0,))
        if not spec.dtype.is_floating_point or spec.dtype in UNMERGEABLE:
            raise CheckpointError(f"{spec.name} differs between the experts but is {spec.dtype}: it cannot be blended")
        return Piece(spec.name, spec.shape, blocks)

    def _differ(self, blocks: Sequence[Block]) -> bool:
        one, *others = (self.checkpoint.tensor(name).view(-1) for name, _ in blocks)
        return any(not torch.equal(one[:GLANCE], other[:GLANCE]) or not torch.equal(one, other) for other in others)

    def experts(self, blended: Sequence[Piece], fingerprint: Callable[[], str]) -> Experts:
        """Give the experts and their ancestor."""
        return WithAncestor(self.checkpoint, blended, self.count, fingerprint, self._ancestors)

    @property
    def names(self) -> list[str]:
        """The experts' folders."""
        return self._names

    def identical(self) -> "FineTuned":
        """Let every expert be the first."""
        same = object.__new__(FineTuned)
        same.__dict__ |= self.__dict__
        same.pieces = [piece if piece.weights is not None else _all_like_first(piece) for piece in self.pieces]
        return same


def dense_family(model_type: str) -> Family:
    """Make the family of a model that is dense already: no tensor changes its name, and no setting its value."""
    return Family(model_type=model_type, dense=model_type, prefix=("", ""), count="", experts=(), width=())


def sites_of(blended: Sequence[Piece]) -> list[Site]:
    """Group what is blended by layers; what lies outside any, by modules."""
    groups: dict[str, list[Part]] = {}
    for piece in blended:
        layer = re.match(r".+?\.\d+(?=\.)", piece.target)
        name = layer[0] if layer else piece.target.rpartition(".")[0] or piece.target
        role: Literal["up", "up_bias"] = "up" if len(piece.shape) > 1 else "up_bias"
        groups.setdefault(name, []).append(Part(role, piece.shape, piece.blocks, piece.target, None))
    return [Site(name, tuple(parts), Fold(1.0, "none")) for name, parts in groups.items()]


def _all_like_first(piece: Piece) -> Piece:
    return Piece(piece.target, piece.shape, piece.blocks[:1] * len(piece.blocks))


def _computed(name: str) -> bool:
    return name.endswith("rotary_emb.inv_freq")  # old checkpoints store what a model computes


def _ancestors(base: Checkpoint, first: Checkpoint) -> dict[str, Block]:
    """Find the base's tensors of the same shape: a bare model says `encoder…`, one with a head `bert.encoder…`."""
    tails = {name.partition(".")[2]: name for name in base.specs}
    found: dict[str, Block] = {}
    for name, spec in first.specs.items():
        for place in (name, name.partition(".")[2], tails.get(name, "")):
            if place in base.specs and base.specs[place].shape == spec.shape and base.specs[place].dtype == spec.dtype:
                found[name] = (f"{BASE}:{place}", 0)
                break
    return found
