"""What a family of MoE models is: where its experts lie on disk, and which dense model holds a merge of them.

A family says, in patterns, which tensors are experts and what becomes of every other tensor. `Family.plan` turns that
into pieces: each piece fills one region of one dense tensor with a weighted sum of blocks of the checkpoint. A copied
tensor is a piece with one block of weight 1, so a plan describes the whole dense model and nothing else does.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint, TensorSpec

Role: TypeAlias = Literal[
    "gate", "up", "down", "gate_bias", "up_bias", "down_bias", "gate_up", "gate_up_bias", "router", "router_bias"
]
Block: TypeAlias = tuple[str, int]  # a tensor of the checkpoint, and the element at which the block starts
Settings: TypeAlias = dict[str, Any]  # a configuration, as transformers understands it
_Found: TypeAlias = tuple[Block, tuple[int, ...], torch.dtype]

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

    @property
    def end(self) -> int:
        """Where the region ends along its axis."""
        return self.start + (self.shape[self.axis] if self.shape else 1)

    @property
    def region(self) -> tuple[slice, ...]:
        """The region as an index of the dense tensor."""
        starts = (self.start if axis == self.axis else 0 for axis in range(len(self.shape)))
        return tuple(slice(start, start + length) for start, length in zip(starts, self.shape, strict=True))


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
    fold: "Fold"  # into the parts that the output is linear in

    @property
    def experts(self) -> int:
        """K."""
        return len(self.parts[0].blocks)

    def part(self, role: Role) -> Part | None:
        """Find the part of a role, None where the family has none."""
        return next((part for part in self.parts if part.role == role), None)


@dataclass(frozen=True)
class ExpertPattern:
    """Names of the tensors that hold a site's experts, and the dense tensor that each role of them goes to.

    `name` has `{site}` for the layer that the site is in (a name that ends in a number), and `{k}` for the expert's
    number if each expert has its own tensor; without `{k}` the tensor's first dimension is K. A tensor with several
    roles holds them one after the other along the dimension that follows. `keep_dim` keeps a first dimension of 1, for
    dense models that are the same class with one expert.
    """

    name: str
    targets: Mapping[Role, str]
    keep_dim: bool = False

    def match(self, tensor: str) -> tuple[str, int | None] | None:
        """Find the site and the expert that a tensor belongs to, None if it is of another kind."""
        found = re.fullmatch(as_regex(self.name), tensor)
        if found is None:
            return None
        expert = found.groupdict().get("k")
        return found["site"], None if expert is None else int(expert)


@dataclass(frozen=True)
class Fold:
    """A factor on a site's output that the dense model carries in its weights."""

    scale: float
    reason: str


UNIT_AXES: dict[Role, int | None] = {
    "gate": 0, "up": 0, "down": 1, "gate_bias": 0, "up_bias": 0, "down_bias": None, "router": None, "router_bias": None,
}  # fmt: skip

DECODER_TWIN: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "num_experts_per_tok": 2, "layer_types": None, "mlp_only_layers": [], "rope_parameters": None,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One family of MoE models; docs/families.md says how to add one."""

    model_type: str
    dense: str  # model_type of the dense model
    prefix: tuple[str, str]  # how the class's name changes: ("Mixtral", "Mistral")
    count: str  # the configuration's key for K
    experts: tuple[ExpertPattern, ...]
    shared: Mapping[Role, str] = field(default_factory=dict)  # an always-active expert, which sits beside the blend
    drop: tuple[str, ...] = ()  # patterns of tensors that the dense model has no use for
    rename: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) for all other tensors
    settings: Callable[[Settings], Settings] = lambda _: {}  # what else changes in the dense configuration
    width: tuple[str, ...] = ("intermediate_size",)  # the dense configuration's keys for the number of hidden units
    unit_axes: Mapping[Role, int | None] = field(default_factory=lambda: UNIT_AXES)
    fold: Callable[[Checkpoint, Settings, str], Fold] | None = None  # the factor on a site's output
    twin: Mapping[str, Any] = field(default_factory=lambda: DECODER_TWIN)  # changes that make a configuration tiny
    note: str = ""  # what a user should know before serving a merge of this family

    def sites(self, checkpoint: Checkpoint, settings: Settings) -> list[Site]:
        """List the sites of a checkpoint, in order; a missing or unequal expert is a CheckpointError."""
        K = settings.get(self.count)
        most = max([len(checkpoint.specs), *(spec.shape[0] for spec in checkpoint.specs.values() if spec.shape)])
        if not isinstance(K, int) or not 1 <= K <= most:
            raise CheckpointError(
                f"config.json of a {self.model_type} model needs {self.count} ≥ 1, and its files hold no more than "
                f"{most} experts (got {K!r})"
            )
        found: dict[str, dict[tuple[Role, str], dict[int, _Found]]] = {}
        for spec in _used(checkpoint, settings):
            for pattern in self.experts:
                match = pattern.match(spec.name)
                if match is not None:
                    kinds = found.setdefault(match[0], {})
                    for role, expert, block, shape in _blocks_of(spec, pattern, match[1], K):
                        kinds.setdefault((role, pattern.targets[role]), {})[expert] = (block, shape, spec.dtype)
                    break
        if not found:
            raise CheckpointError(f"{checkpoint.path} holds no experts of the {self.model_type} family")
        return [self._site(checkpoint, settings, name, found[name], K) for name in sorted(found, key=_natural)]

    def _site(
        self,
        checkpoint: Checkpoint,
        settings: Settings,
        name: str,
        kinds: dict[tuple[Role, str], dict[int, _Found]],
        K: int,
    ) -> Site:
        parts = []
        for (role, target), experts in kinds.items():
            if sorted(experts) != list(range(K)):
                wrong = sorted(set(range(K)) ^ set(experts))[0]
                state = "missing" if wrong < K else "one too many"
                raise CheckpointError(f"{name} must have {K} experts: {role} of expert {wrong} is {state}")
            shapes = {shape for _, shape, _ in experts.values()}
            if len(shapes) > 1:
                raise CheckpointError(
                    f"the experts of {name} differ in shape ({role}: {sorted(shapes)}): no merge is possible"
                )
            dtypes = {dtype for _, _, dtype in experts.values()}
            if len(dtypes) > 1 or not dtypes <= MERGEABLE:
                raise CheckpointError(
                    f"{name}: {role} must be of one 16- or 32-bit type (got {dtypes}); convert it first"
                )
            blocks = tuple(experts[k][0] for k in range(K))
            parts.append(Part(role, shapes.pop(), blocks, target.format(site=name), self.unit_axes[role]))
        fold = self.fold(checkpoint, settings, name) if self.fold else Fold(1.0, "none")
        return Site(name, tuple(sorted(parts, key=lambda part: part.target)), fold)

    def plan(self, checkpoint: Checkpoint, settings: Settings, sites: list[Site]) -> list[Piece]:
        """List every piece of the dense model, for a blend of all experts."""
        pieces = [
            Piece(part.target, part.shape, part.blocks, scale=site.fold.scale if part.role in OUTPUT_ROLES else 1.0)
            for site in sites
            for part in site.parts
        ]
        taken = {tensor for piece in pieces for tensor, _ in piece.blocks}
        named = {site.name: site for site in sites}
        for spec in _used(checkpoint, settings):
            if spec.name not in taken:
                pieces += self._other(spec, named)
        return pieces

    def _other(self, spec: TensorSpec, sites: dict[str, Site]) -> list[Piece]:
        for role, pattern in self.shared.items():
            found = re.fullmatch(as_regex(pattern), spec.name)
            part = sites[found["site"]].part(role) if found else None
            if part is not None and part.unit_axis is not None:
                start = part.shape[part.unit_axis]
                return [Piece(part.target, spec.shape, ((spec.name, 0),), (1.0,), axis=part.unit_axis, start=start)]
        if any(re.search(pattern, spec.name) for pattern in self.drop):
            return []
        name = spec.name
        for pattern, replacement in self.rename:
            name = re.sub(pattern, replacement, name)
        return [Piece(name, spec.shape, ((spec.name, 0),), (1.0,))]

    def shapes(self, pieces: list[Piece]) -> tuple[dict[str, tuple[int, ...]], int]:
        """Work out the shape of every dense tensor, and the number of hidden units that all FFNs are padded to."""
        axes = {target: self.unit_axes[role] for pattern in self.experts for role, target in pattern.targets.items()}
        patterns = [(re.compile(as_regex(target)), axis) for target, axis in axes.items()]
        shapes: dict[str, list[int]] = {}
        padded: dict[str, int] = {}
        for piece in pieces:
            shape = shapes.setdefault(piece.target, list(piece.shape))
            if piece.shape:
                shape[piece.axis] = max(shape[piece.axis], piece.end)
            axis = next((axis for regex, axis in patterns if axis is not None and regex.fullmatch(piece.target)), None)
            if axis is not None:
                padded[piece.target] = axis
        # gate and up in one tensor count each unit twice, and so are not padded (they never need it)
        single = {target: axis for target, axis in padded.items() if "gate_up" not in target}
        width = max((shapes[target][axis] for target, axis in single.items()), default=0)
        for target, axis in single.items():
            shapes[target][axis] = width
        return {target: tuple(shape) for target, shape in shapes.items()}, width


def _used(checkpoint: Checkpoint, settings: Settings) -> list[TensorSpec]:
    """List the tensors that a model loads: not layers beyond its depth (multi-token prediction), nor old buffers."""
    depth = settings.get("num_hidden_layers", math.inf)
    specs = (spec for name, spec in checkpoint.specs.items() if not name.endswith("rotary_emb.inv_freq"))
    layers = ((re.match(r"model\.layers\.(\d+)\.", spec.name), spec) for spec in specs)
    return [spec for layer, spec in layers if layer is None or int(layer[1]) < depth]


def as_regex(name: str) -> str:
    """Turn a name with {site} and {k} into a regular expression with groups of these names."""
    return re.escape(name).replace(r"\{site\}", r"(?P<site>.+\.\d+)").replace(r"\{k\}", r"(?P<k>\d+)")


def _natural(name: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]


def _blocks_of(
    spec: TensorSpec, pattern: ExpertPattern, expert: int | None, K: int
) -> list[tuple[Role, int, Block, tuple[int, ...]]]:
    """Cut one tensor into the blocks of its roles and experts: (role, expert, block, shape)."""
    roles = tuple(pattern.targets)
    if expert is None:
        if not spec.shape or spec.shape[0] != K:
            raise CheckpointError(f"{spec.name} must have {K} experts in its first dimension (got {spec.shape})")
        shape, experts = spec.shape[1:], range(K)
    else:
        shape, experts = spec.shape, range(expert, expert + 1)
    if len(roles) > 1:
        if not shape or shape[0] % len(roles):
            raise CheckpointError(f"{spec.name} {spec.shape} cannot be cut into {' and '.join(roles)}")
        shape = (shape[0] // len(roles), *shape[1:])
    size = spec.numel // len(experts)
    step = size // len(roles)
    return [
        (role, k, (spec.name, index * size + part * step), (1, *shape) if pattern.keep_dim else shape)
        for index, k in enumerate(experts)
        for part, role in enumerate(roles)
    ]
