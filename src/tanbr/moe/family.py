"""What a family of MoE models is: where its experts lie on disk, and which dense model holds a merge of them.

A family says, in patterns, which tensors are experts and what becomes of every other tensor. `Family.plan` turns that
into pieces: each piece fills one region of one dense tensor with a weighted sum of blocks of the checkpoint. A copied
tensor is a piece with one block of weight 1, so a plan describes the whole dense model and nothing else does.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint, TensorSpec

Role: TypeAlias = Literal[
    "gate", "up", "down", "gate_bias", "up_bias", "down_bias", "gate_up", "gate_up_bias", "router"
]
Block: TypeAlias = tuple[str, int]  # a tensor of the checkpoint, and the element at which the block starts
ConfigDict: TypeAlias = dict[str, Any]

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

    @property
    def end(self) -> int:
        """Where the region ends along its axis."""
        return self.start + (self.shape[self.axis] if self.shape else 1)


@dataclass(frozen=True)
class Part:
    """One kind of tensor of a site's experts, the same for all K."""

    role: Role
    shape: tuple[int, ...]  # of one expert's
    blocks: tuple[Block, ...]  # (K,)
    target: str
    unit_axis: int | None  # the axis that counts hidden units; None where none does


@dataclass(frozen=True)
class Site:
    """One FFN with K experts."""

    name: str
    parts: tuple[Part, ...]
    scale: float = 1.0  # folded into the parts that the output is linear in

    @property
    def experts(self) -> int:
        """K."""
        return len(self.parts[0].blocks)

    def part(self, role: Role) -> Part | None:
        """Find the part of a role, None where the family has none."""
        return next((part for part in self.parts if part.role == role), None)


@dataclass(frozen=True)
class ExpertPattern:
    """Names of the tensors that hold one role of a site's experts.

    `name` has `{site}` for the layer that the site is in (a name that ends in a number), and `{k}` for the expert's
    number if each expert has its own tensor; without `{k}` the tensor's first dimension is K. A tensor with several
    roles holds them one after the other along the dimension that follows.
    """

    name: str
    roles: tuple[Role, ...]

    def match(self, tensor: str) -> tuple[str, int | None] | None:
        """Find the site and the expert that a tensor belongs to, None if it is of another kind."""
        found = re.fullmatch(_as_regex(self.name), tensor)
        if found is None:
            return None
        expert = found.groupdict().get("k")
        return found["site"], None if expert is None else int(expert)


@dataclass(frozen=True)
class Family:
    """One family of MoE models; see docs/families.md for how to add one."""

    model_type: str
    dense: str  # model_type of the dense model
    experts: tuple[ExpertPattern, ...]
    targets: Mapping[Role, str]  # dense name of each role, with {site}
    prefix: tuple[str, str]  # how the class name changes: ("Mixtral", "Mistral")
    count: str  # the configuration's key for K
    unit_axes: Mapping[Role, int | None] = field(default_factory=lambda: UNIT_AXES)
    shared: Mapping[Role, str] = field(
        default_factory=dict
    )  # names of an always-active expert, to sit beside the blend
    drop: tuple[str, ...] = ()  # patterns of tensors that the dense model has no use for
    rename: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) for all other tensors
    config: Callable[[ConfigDict], ConfigDict] = dict  # changes to the dense configuration
    fold: Callable[[Checkpoint, str], tuple[float, str]] | None = None  # site → scale of its output, and why
    width: str = "intermediate_size"  # the dense configuration's key for the number of hidden units
    twin: Mapping[str, Any] = field(default_factory=dict)  # changes that make a configuration tiny

    def sites(self, checkpoint: Checkpoint) -> list[Site]:
        """List the sites of a checkpoint, in order; a missing or unequal expert is a CheckpointError."""
        found: dict[str, dict[Role, dict[int, tuple[Block, tuple[int, ...]]]]] = {}
        K = self.num_experts(checkpoint.config)
        for spec in checkpoint.specs.values():
            for pattern in self.experts:
                match = pattern.match(spec.name)
                if match is not None:
                    roles = found.setdefault(match[0], {})
                    for role, expert, block, shape in _blocks_of(spec, pattern.roles, match[1], K):
                        roles.setdefault(role, {})[expert] = (block, shape)
                    break
        if not found:
            raise CheckpointError(f"{checkpoint.path} holds no experts of the {self.model_type} family")
        return [self._site(checkpoint, name, found[name], K) for name in sorted(found, key=_natural)]

    def num_experts(self, config: ConfigDict) -> int:
        """K, from the configuration."""
        count = config.get(self.count)
        if not isinstance(count, int) or count < 1:
            raise CheckpointError(f"config.json of a {self.model_type} model needs {self.count} ≥ 1 (got {count!r})")
        return count

    def _site(
        self, checkpoint: Checkpoint, name: str, roles: dict[Role, dict[int, tuple[Block, tuple[int, ...]]]], K: int
    ) -> Site:
        parts = []
        for role, experts in roles.items():
            if sorted(experts) != list(range(K)):
                lost = sorted(set(range(K)) - set(experts)) or sorted(experts)
                raise CheckpointError(
                    f"{name} must have {K} experts ({role} of expert {lost[0]} is missing or too many)"
                )
            shapes = {shape for _, shape in experts.values()}
            if len(shapes) > 1:
                raise CheckpointError(
                    f"the experts of {name} differ in shape ({role}: {sorted(shapes)}); cannot merge them"
                )
            blocks = tuple(experts[k][0] for k in range(K))
            dtypes = {checkpoint.specs[tensor].dtype for tensor, _ in blocks}
            if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point or next(iter(dtypes)).itemsize < 2:
                raise CheckpointError(f"{name}: {role} must be of one type of 16 or 32 bits (got {dtypes}); convert it")
            target = self.targets[role].format(site=name)
            parts.append(Part(role, shapes.pop(), blocks, target, self.unit_axes[role]))
        scale = self.fold(checkpoint, name)[0] if self.fold else 1.0
        return Site(name, tuple(sorted(parts, key=lambda part: part.target)), scale)

    def plan(self, checkpoint: Checkpoint, sites: list[Site]) -> list[Piece]:
        """Every piece of the dense model, for a blend of all experts."""
        pieces = [
            Piece(part.target, part.shape, part.blocks, scale=site.scale if part.role in OUTPUT_ROLES else 1.0)
            for site in sites
            for part in site.parts
        ]
        taken = {tensor for piece in pieces for tensor, _ in piece.blocks}
        beside = {piece.target: piece for piece in pieces}
        for spec in checkpoint.specs.values():
            if spec.name not in taken:
                pieces += self._other(spec, beside)
        return pieces

    def _other(self, spec: TensorSpec, beside: dict[str, Piece]) -> list[Piece]:
        for role, pattern in self.shared.items():
            found = re.fullmatch(_as_regex(pattern), spec.name)
            if found:
                merged = beside[self.targets[role].format(site=found["site"])]
                axis = self.unit_axes[role]
                if axis is None:
                    raise CheckpointError(f"{spec.name}: a shared expert's {role} cannot sit beside a blend")
                start = merged.shape[axis]
                return [Piece(merged.target, spec.shape, ((spec.name, 0),), (1.0,), axis=axis, start=start)]
        if any(re.search(pattern, spec.name) for pattern in self.drop):
            return []
        name = spec.name
        for pattern, replacement in self.rename:
            name = re.sub(pattern, replacement, name)
        return [Piece(name, spec.shape, ((spec.name, 0),), (1.0,))]


UNIT_AXES: dict[Role, int | None] = {
    "gate": 0,
    "up": 0,
    "down": 1,
    "gate_bias": 0,
    "up_bias": 0,
    "down_bias": None,
    "router": None,
}


def _as_regex(name: str) -> str:
    return re.escape(name).replace(r"\{site\}", r"(?P<site>.+\.\d+)").replace(r"\{k\}", r"(?P<k>\d+)")


def _natural(name: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]


def _blocks_of(
    spec: TensorSpec, roles: tuple[Role, ...], expert: int | None, K: int
) -> list[tuple[Role, int, Block, tuple[int, ...]]]:
    """Cut one tensor into the blocks of its roles and experts: (role, expert, block, shape)."""
    if expert is None:
        if not spec.shape or spec.shape[0] != K:
            raise CheckpointError(f"{spec.name} must have {K} experts in its first dimension (got {spec.shape})")
        shape, experts = spec.shape[1:], range(K)
    else:
        shape, experts = spec.shape, range(expert, expert + 1)
    if shape and shape[0] % len(roles):
        raise CheckpointError(f"{spec.name} {spec.shape} cannot be cut into {' and '.join(roles)}")
    each = (shape[0] // len(roles), *shape[1:]) if shape else ()
    size = spec.numel // len(experts)
    step = size // len(roles)
    return [
        (role, k, (spec.name, index * size + part * step), each)
        for index, k in enumerate(experts)
        for part, role in enumerate(roles)
    ]


def concatenated(pieces: list[Piece], sites: list[Site], experts: list[int]) -> list[Piece]:
    """Change a plan from a blend to the chosen experts side by side, each with 1/k of the output."""
    share = 1 / len(experts)
    parts = {part.target: part for site in sites for part in site.parts}
    result: list[Piece] = []
    for piece in pieces:
        part = parts.get(piece.target)
        if part is None or piece.weights is not None:
            shift = 0 if part is None or part.unit_axis is None else (len(experts) - 1) * part.shape[part.unit_axis]
            result.append(replace(piece, start=piece.start + shift))
        elif part.unit_axis is None:
            weights = tuple(share if k in experts else 0.0 for k in range(len(piece.blocks)))
            result.append(replace(piece, weights=weights))
        else:
            scale = piece.scale * (share if part.role in OUTPUT_ROLES else 1.0)
            width = part.shape[part.unit_axis]
            result += [
                replace(
                    piece, blocks=(piece.blocks[k],), weights=(1.0,), scale=scale, axis=part.unit_axis, start=i * width
                )
                for i, k in enumerate(experts)
            ]
    return result
