"""What a family of MoE models is: where its experts lie on disk, and which dense model holds a merge of them.

A family says, in patterns, which tensors are experts and what becomes of every other tensor. `Family.plan` turns that
into pieces: each piece fills one region of one dense tensor with a weighted sum of blocks of the checkpoint. A copied
tensor is a piece with one block of weight 1, so a plan describes the whole dense model and nothing else does.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias

import torch

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint, TensorSpec

Role: TypeAlias = Literal[
    "gate", "up", "down", "gate_bias", "up_bias", "down_bias", "gate_up", "gate_up_bias", "router", "router_bias"
]
Block: TypeAlias = tuple[str, int]  # a tensor of the checkpoint, and the element at which the block starts
Settings: TypeAlias = dict[str, Any]  # a configuration, as transformers understands it

MERGEABLE = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
OUTPUT_ROLES: frozenset[Role] = frozenset({"down", "down_bias"})  # a fold scales these: they are linear in the output


@dataclass(frozen=True)
class Piece:
    """A region of a dense tensor: Σ_k weights[k] · scale · blocks[k], each block of `shape`."""

    target: str  # name of the dense tensor
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]  # K of them, in the order of the experts; or one
    weights: tuple[float, ...] | None = None  # fixed weights; None: the blend's
    scale: float = 1.0
    axis: int = 0  # the region starts at `start` along this axis of the dense tensor
    start: int = 0
    unit_axis: int | None = None  # the axis that counts hidden units of an FFN; None where none does

    @property
    def region(self) -> tuple[slice, ...]:
        """The region as an index of the dense tensor."""
        starts = (self.start if axis == self.axis else 0 for axis in range(len(self.shape)))
        return tuple(slice(start, start + length) for start, length in zip(starts, self.shape, strict=True))


@dataclass(frozen=True)
class Site:
    """One FFN with K experts; or a layer of experts over a base, of which no parts are told."""

    name: str
    parts: Mapping[Role, Piece] = field(default_factory=dict)
    fold: "Fold" = field(default_factory=lambda: Fold(1.0, "none"))  # into the parts that the output is linear in


@dataclass(frozen=True)
class ExpertPattern:
    """Names of the tensors that hold a site's experts, and the dense tensor that each role of them goes to.

    `name` has `{site}` for the layer (a name that ends in a number), and `{k}` for the expert's number if each expert
    has its own tensor; without `{k}` the first dimension is K. Several roles lie one after the other along the next
    dimension. `keep_dim` keeps a first dimension of 1, for dense models that are the same class with one expert.
    """

    name: str
    targets: Mapping[Role, str]
    keep_dim: bool = False

    def cut(self, spec: TensorSpec, K: int) -> list["Cut"]:
        """Cut a tensor into the blocks of its roles and experts; none if it is of another kind."""
        found = re.fullmatch(as_regex(self.name), spec.name)
        if found is None:
            return []
        shape, experts, roles = spec.shape, range(K), len(self.targets)
        if "k" in found.groupdict():
            experts = range(int(found["k"]), int(found["k"]) + 1)
        elif not shape or shape[0] != K:
            raise CheckpointError(f"{spec.name} must have {K} experts in its first dimension (got {shape})")
        else:
            shape = shape[1:]
        if roles > 1:
            if not shape or shape[0] % roles:
                raise CheckpointError(f"{spec.name} {spec.shape} cannot be cut into {' and '.join(self.targets)}")
            shape = (shape[0] // roles, *shape[1:])
        step = spec.numel // len(experts) // roles
        shape = (1, *shape) if self.keep_dim else shape
        return [
            Cut(found["site"], role, target, k, (spec.name, (index * roles + number) * step), shape, spec.dtype)
            for index, k in enumerate(experts)
            for number, (role, target) in enumerate(self.targets.items())
        ]


@dataclass(frozen=True)
class Cut:
    """The block of one role and expert, where a pattern found it."""

    site: str
    role: Role
    target: str  # pattern of the dense tensor that it goes to
    expert: int
    block: Block
    shape: tuple[int, ...]
    dtype: torch.dtype


def in_place(roles: Mapping[str, Role], *, keep_dim: bool = False) -> tuple[ExpertPattern, ...]:
    """Patterns of tensors that keep their names in the dense model: name → role."""
    return tuple(ExpertPattern(name, {role: name}, keep_dim) for name, role in roles.items())


@dataclass(frozen=True)
class Fold:
    """A factor on a site's output that the dense model carries in its weights."""

    scale: float
    reason: str


UNIT_AXES: dict[Role, int | None] = {
    "gate": 0, "up": 0, "down": 1, "gate_bias": 0, "up_bias": 0, "down_bias": None, "router": None, "router_bias": None,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One family of MoE models; docs/families.md says how to add one."""

    model_type: str
    dense: str  # model_type of the dense model
    prefix: tuple[str, str]  # how the class's name changes: ("Mixtral", "Mistral")
    experts: tuple[ExpertPattern, ...]
    count: str = "num_experts"  # the configuration's key for K
    shared: Mapping[Role, str] = field(default_factory=dict)  # an always-active expert, which sits beside the blend
    drop: tuple[str, ...] = ()  # patterns of tensors that the dense model has no use for
    rename: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) for all other tensors
    settings: Callable[[Settings], Settings] = lambda _: {}  # what else changes in the dense configuration
    width: tuple[str, ...] = ("intermediate_size",)  # the dense configuration's keys for the number of hidden units
    unit_axes: Mapping[Role, int | None] = field(default_factory=lambda: UNIT_AXES)
    fold: Callable[[Checkpoint, Settings, str], Fold] | None = None  # the factor on a site's output

    def sites(self, checkpoint: Checkpoint, settings: Settings) -> list[Site]:
        """List the sites of a checkpoint, in order; a missing or unequal expert is a CheckpointError."""
        K = settings.get(self.count)
        most = max([len(checkpoint.specs), *(spec.shape[0] for spec in checkpoint.specs.values() if spec.shape)])
        if not isinstance(K, int) or not 1 <= K <= most:
            raise CheckpointError(
                f"config.json must give {self.count} from 1 to the {most} experts there are (got {K!r})"
            )
        found: dict[str, dict[tuple[Role, str], dict[int, Cut]]] = {}
        for spec in _used(checkpoint, settings):
            for cut in next(filter(None, (pattern.cut(spec, K) for pattern in self.experts)), ()):
                found.setdefault(cut.site, {}).setdefault((cut.role, cut.target), {})[cut.expert] = cut
        if not found:
            raise CheckpointError(f"{checkpoint.path} holds no experts of the {self.model_type} family")
        sites = []
        for name in sorted(found, key=_natural):
            fold = self.fold(checkpoint, settings, name) if self.fold else Fold(1.0, "none")
            parts = {kind[0]: self._part(name, *kind, cuts, K, fold) for kind, cuts in found[name].items()}
            sites.append(Site(name, dict(sorted(parts.items(), key=lambda part: part[1].target)), fold))
        return sites

    def _part(self, site: str, role: Role, target: str, cuts: Mapping[int, Cut], K: int, fold: Fold) -> Piece:
        wrong = min(set(range(K)) ^ set(cuts), default=None)
        if wrong is not None:
            state = "missing" if wrong < K else "one too many"
            raise CheckpointError(f"{site} must have {K} experts: {role} of expert {wrong} is {state}")
        shapes, dtypes = ({getattr(cut, what) for cut in cuts.values()} for what in ("shape", "dtype"))
        if len(shapes) > 1:
            raise CheckpointError(f"the experts of {site} differ in shape ({role}: {sorted(shapes)}): none can merge")
        if len(dtypes) > 1 or not dtypes <= MERGEABLE:
            raise CheckpointError(f"{site}: {role} must be of one 16- or 32-bit type (got {dtypes}); convert it first")
        blocks, scale = tuple(cuts[k].block for k in range(K)), fold.scale if role in OUTPUT_ROLES else 1.0
        return Piece(target.format(site=site), shapes.pop(), blocks, scale=scale, unit_axis=self.unit_axes[role])

    def plan(self, checkpoint: Checkpoint, settings: Settings, sites: list[Site]) -> list[Piece]:
        """List every piece of the dense model, for a blend of all experts."""
        pieces = [part for site in sites for part in site.parts.values()]
        taken = {tensor for piece in pieces for tensor, _ in piece.blocks}
        named = {site.name: site for site in sites}
        others = (self._other(spec, named) for spec in _used(checkpoint, settings) if spec.name not in taken)
        return pieces + [piece for piece in others if piece is not None]

    def _other(self, spec: TensorSpec, sites: dict[str, Site]) -> Piece | None:
        """Place a tensor that is no expert's: beside the blend, dropped, or under its dense name."""
        for role, pattern in self.shared.items():
            found = re.fullmatch(as_regex(pattern), spec.name)
            part = sites[found["site"]].parts.get(role) if found else None
            if part is not None and part.unit_axis is not None:
                start = part.shape[part.unit_axis]
                return Piece(part.target, spec.shape, ((spec.name, 0),), (1.0,), axis=part.unit_axis, start=start)
        if any(re.search(pattern, spec.name) for pattern in self.drop):
            return None
        name = spec.name
        for pattern, replacement in self.rename:
            name = re.sub(pattern, replacement, name)
        axes = {target: self.unit_axes[role] for pattern in self.experts for role, target in pattern.targets.items()}
        axis = next((axis for target, axis in axes.items() if re.fullmatch(as_regex(target), name)), None)
        return Piece(name, spec.shape, ((spec.name, 0),), (1.0,), unit_axis=axis)  # an FFN without experts has units


def _used(checkpoint: Checkpoint, settings: Settings) -> list[TensorSpec]:
    """List the tensors that a model loads: not layers beyond its depth (multi-token prediction), nor old buffers."""
    depth = settings.get("num_hidden_layers", math.inf)
    specs = (spec for name, spec in checkpoint.specs.items() if not name.endswith("rotary_emb.inv_freq"))
    layers = ((re.match(r"model\.layers\.(\d+)\.", spec.name), spec) for spec in specs)
    return [spec for layer, spec in layers if layer is None or int(layer[1]) < depth]


@cache
def as_regex(name: str) -> str:
    """Turn a name with {site} and {k} into a regular expression with groups of these names."""
    return re.escape(name).replace(r"\{site\}", r"(?P<site>.+\.\d+)").replace(r"\{k\}", r"(?P<k>\d+)")


def _natural(name: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]
