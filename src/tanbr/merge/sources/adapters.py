"""Experts that are LoRA adapters (PEFT folders) over one base: expert k is W₀ + s_k B_k A_k.

    W(x) = W₀ + Σ_k x_k s_k B_k A_k        s_k = α_k / r_k, or α_k / √r_k with rslora

No expert is ever built to be averaged: a merge copies W₀ and adds one product of the factors, side by side. Ranks and
targets may differ; an adapter that leaves a layer alone counts as the base there. What adapters hold in full
(modules_to_save) is blended like the tensors of fine-tuned checkpoints.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.blend import weighted_sum
from tanbr.merge.methods import Experts
from tanbr.merge.sources.fine_tuned import BASE, dense_family, sites_of
from tanbr.merge.sources.joined import Joined, Member, member_of
from tanbr.merge.sources.moe_checkpoint import check_depth
from tanbr.merge.sources.peft_folder import SETTINGS, Adapter
from tanbr.merge.sources.source import ExpertSource, at_least_two
from tanbr.moe.checkpoint import Checkpoint
from tanbr.moe.families import read_settings
from tanbr.moe.family import UNMERGEABLE, Piece

ROWS = 1 << 18  # elements of a half type that are widened at a time


@dataclass(frozen=True)
class LowRank:
    """What one adapter adds to one matrix W (m, n): scale · B A, or its transpose where W is stored so."""

    down: str  # tensor A (r, n)
    up: str  # tensor B (m, r)
    scale: float
    transposed: bool
    embedding: bool


@dataclass(frozen=True, eq=False)
class AdapterExperts(Experts):
    """Experts of which only the difference from the base is on disk, as factors."""

    factors: Mapping[str, Mapping[int, LowRank]]  # target → expert → what it adds

    def check(self, expert: int) -> None:
        """Refuse an adapter, or a base, that holds NaN or infinity."""
        super().check(expert)
        for one in (adds[expert] for adds in self.factors.values() if expert in adds):
            for name in (one.down, one.up):
                if not torch.isfinite(self.checkpoint.tensor(name).sum(dtype=torch.float32)):
                    raise CheckpointError(f"{name} of {self.path} holds NaN or infinity; the adapter is damaged")

    def ancestor(self, piece: Piece) -> Tensor | None:
        """View the base's tensor (n,)."""
        name = f"{BASE}:{piece.target}"
        return self.checkpoint.tensor(name).view(-1) if name in self.checkpoint.specs else None

    def average(self, out: Tensor, piece: Piece, weights: Sequence[float]) -> None:
        """Set `out` to Σ weights[k] · expert k: the base once, and one product of all factors."""
        if piece.target not in self.factors:
            super().average(out, piece, weights)
            return
        total = math.fsum(weights)
        share = 1.0 if math.isclose(total, 1.0, rel_tol=1e-9) else total  # a blend sums to 1 up to rounding
        left, right = self._product(piece, weights)  # (m, R), (R, n)
        if out.dtype == left.dtype and out.is_contiguous():
            weighted_sum(out, self.checkpoint, piece.blocks[:1], [share])
            out.addmm_(left.to(out.device), right.to(out.device))
            return
        base = self.checkpoint.tensor(piece.blocks[0][0])
        step = max(1, ROWS // base.shape[1])
        for at in range(0, base.shape[0], step):  # summed in float32, rounded once
            rows = slice(at, at + step)
            out[rows] = torch.addmm(base[rows].to(left.dtype), left[rows], right, beta=share).to(out)

    def one(self, piece: Piece, expert: int) -> Tensor:
        """Build one expert of a piece (n,), in the base's type."""
        if piece.target not in self.factors:
            return super().one(piece, expert)
        out = torch.empty(piece.shape, dtype=self.checkpoint.specs[piece.blocks[0][0]].dtype)
        self.average(out, piece, [float(k == expert) for k in range(self.count)])
        return out.view(-1)

    def rows(self, piece: Piece, chosen: Sequence[int], part: slice = slice(None)) -> Tensor:
        """Read a part of the chosen experts as rows (r, n); only the lines of the matrix that it cuts are built."""
        if piece.target not in self.factors:
            return super().rows(piece, chosen, part)
        base = self.checkpoint.tensor(piece.blocks[0][0])
        begin, end, _ = part.indices(base.numel())
        lines = slice(begin // base.shape[1], -(-end // base.shape[1]))
        cut = slice(begin - lines.start * base.shape[1], end - lines.start * base.shape[1])
        found = []
        for expert in chosen:
            left, right = self._product(piece, [float(k == expert) for k in range(self.count)])
            found.append(torch.addmm(base[lines].to(left.dtype), left[lines], right).view(-1)[cut])
        return torch.stack(found)

    def _product(self, piece: Piece, weights: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Put the weighted factors of a matrix (m, n) side by side: (m, R) and (R, n)."""
        wide = torch.promote_types(self.checkpoint.specs[piece.blocks[0][0]].dtype, torch.float32)
        lefts, rights = [torch.empty(piece.shape[0], 0, dtype=wide)], [torch.empty(0, piece.shape[1], dtype=wide)]
        for expert, one in self.factors[piece.target].items():
            if weights[expert]:
                up, down = (self.checkpoint.tensor(name).to(wide) for name in (one.up, one.down))
                lefts.append((down.T if one.transposed else up) * (weights[expert] * one.scale))
                rights.append(up.T if one.transposed else down)
        return torch.cat(lefts, dim=1), torch.cat(rights)


class Adapters(ExpertSource):
    """K LoRA adapters over one base."""

    def __init__(self, base: Checkpoint, adapters: Sequence[Adapter]) -> None:
        at_least_two([adapter.path for adapter in adapters])
        if "quantization_config" in base.config:
            raise CheckpointError(f"{base.path} is quantised; load it with transformers, dequantise and save it")
        check_depth(base)
        self.adapters = list(adapters)
        self.count = len(self.adapters)
        self.config = read_settings(base.config)
        self.family = dense_family(base.config["model_type"])
        members = {BASE: member_of(base)}
        members |= {str(adapter.path): Member(adapter.path, SETTINGS, adapter.files) for adapter in adapters}
        self.checkpoint = Joined(base.path, base.config, members)
        self.companions = (base.path,)
        self.factors: dict[str, dict[int, LowRank]] = {}
        self._whole: dict[str, dict[int, str]] = {}  # target → expert → the tensor that it holds in full
        for number, adapter in enumerate(self.adapters):
            self._take(base, number, adapter)
        self.pieces = [
            self._piece(name, spec.shape) for name, spec in base.specs.items() if not name.endswith("inv_freq")
        ]
        self.sites = sites_of([piece for piece in self.pieces if piece.weights is None])

    def _take(self, base: Checkpoint, number: int, adapter: Adapter) -> None:
        for module, layer in adapter.layers.items():
            target = f"{module}.weight"
            spec = base.specs.get(target)
            shape = (layer.up.shape[0], layer.down.shape[1])
            transposed = adapter.fan_in_fan_out or layer.embedding
            if spec is None or spec.shape != (shape[::-1] if transposed else shape):
                has = "has none" if spec is None else f"has {spec.shape}"
                raise CheckpointError(
                    f"adapter {adapter.path} was made for another base: it changes {target} {shape}, of which "
                    f"{base.path} {has}; name the base that it was trained on ({adapter.base or 'not said'})"
                )
            if not spec.dtype.is_floating_point or spec.dtype in UNMERGEABLE:
                raise CheckpointError(f"{target} of {base.path} is {spec.dtype}, to which no adapter can be added")
            key = str(adapter.path)
            added = LowRank(
                f"{key}:{layer.down.name}", f"{key}:{layer.up.name}", layer.scale, transposed, layer.embedding
            )
            self.factors.setdefault(target, {})[number] = added
        for target, whole in adapter.whole.items():
            spec = base.specs.get(target)
            if spec is not None and spec.shape == whole.shape and spec.dtype != whole.dtype:
                raise CheckpointError(
                    f"{target} is {whole.dtype} in {adapter.path} and {spec.dtype} in {base.path}; save both alike"
                )
            if spec is None or spec.shape != whole.shape:
                raise CheckpointError(
                    f"adapter {adapter.path} was made for another base: it holds {target} {whole.shape}, "
                    f"for which {base.path} has no place; save the base with the head that the adapter was trained with"
                )
            self._whole.setdefault(target, {})[number] = f"{adapter.path}:{whole.name}"
        both = sorted(self.factors.keys() & self._whole.keys())
        if both:
            raise CheckpointError(f"{both[0]} is held in full by one adapter, in factors by another: no blend can be")

    def _piece(self, target: str, shape: tuple[int, ...]) -> Piece:
        own = (f"{BASE}:{target}", 0)
        if target in self.factors:
            return Piece(target, shape, (own,) * self.count)
        if target in self._whole:
            whole = self._whole[target]
            return Piece(target, shape, tuple((whole[k], 0) if k in whole else own for k in range(self.count)))
        return Piece(target, shape, (own,), (1.0,))

    def experts(self, blended: Sequence[Piece], fingerprint: Callable[[], str]) -> AdapterExperts:
        """Give the base and the factors."""
        return AdapterExperts(self.checkpoint, blended, self.count, fingerprint, self.factors)

    @property
    def names(self) -> list[str]:
        """The adapters' folders."""
        return [str(adapter.path) for adapter in self.adapters]

    def identical(self) -> "Adapters":
        """Let every adapter be the first."""
        same = object.__new__(Adapters)
        same.__dict__ |= self.__dict__
        same.factors = {
            target: dict.fromkeys(range(self.count), adds[0]) for target, adds in self.factors.items() if 0 in adds
        }
        same.pieces = [
            piece if piece.weights is not None else replace(piece, blocks=piece.blocks[:1] * self.count)
            for piece in self.pieces
        ]
        return same
