"""What merge methods read of experts over one base, of which adapters have only their difference from it on disk.

    W(x) = Σ_k x_k (W_k + s_k B_k A_k)        s_k = α_k / r_k, or α_k / √r_k with rslora

W_k is the expert's own tensor where it has one (a fine-tuned checkpoint, modules_to_save) and the base's where it is an
adapter, B_k A_k what that adds. No expert is ever built to be averaged: a merge sums the tensors, each once, and adds
one product of all factors, side by side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from tanbr.errors import CheckpointError
from tanbr.merge.blend import is_finite, weighted_sum
from tanbr.merge.sources.peft_folder import LowRank
from tanbr.merge.sources.source import ExpertSource
from tanbr.moe.family import Block, Piece

ROWS = 1 << 18  # elements of a half type that are widened at a time


class ExpertsOverBase(ExpertSource):
    """Experts whose ancestor is known; some may be low-rank differences from it, some may lack a label."""

    ancestors: dict[str, Block]  # target → where the base has it
    factors: Mapping[str, Mapping[int, LowRank]]  # target → expert → what it adds
    absent: dict[tuple[Block, ...], frozenset[int]]  # blocks of a head's piece → who lacks its labels

    def beside(self, folder: str) -> Path:
        """Name a folder beside the base, which other experts may have come from too."""
        return self.checkpoint.path / f"{folder}-{self.checkpoint.fingerprint[:12]}"

    def check(self, expert: int) -> None:
        """Refuse an adapter, or a base, that holds NaN or infinity."""
        super().check(expert)
        for one in (adds[expert] for adds in self.factors.values() if expert in adds):
            for name in (one.down.name, one.up.name):
                if not is_finite(self.checkpoint.tensor(name)):
                    raise CheckpointError(f"{name} holds NaN or infinity; the adapter is damaged")

    def ancestor(self, piece: Piece) -> Tensor | None:
        """View the base's tensor of a piece (n,); None if the base has none."""
        block = self.ancestors.get(piece.target)
        return None if block is None else self.checkpoint.tensor(block[0]).view(-1)

    def average(self, out: Tensor, piece: Piece, weights: Sequence[float]) -> None:
        """Set `out` to Σ weights[k] · expert k: each stored tensor once, and one product of all factors."""
        shares = self._shares(piece, weights)
        product = self._product(piece, weights)  # (m, R), (R, n)
        if product is None:
            weighted_sum(out, self.checkpoint, list(shares), list(shares.values()))
            return
        left, right = product
        if out.dtype == left.dtype and out.is_contiguous():
            weighted_sum(out, self.checkpoint, list(shares), list(shares.values()))
            out.addmm_(left.to(out.device), right.to(out.device))
            return
        stored = [(self.checkpoint.tensor(name), share) for (name, _), share in shares.items() if share]
        step = max(1, ROWS // piece.shape[1])
        for at in range(0, piece.shape[0], step):  # summed in float32, rounded once
            rows = slice(at, at + step)
            total = left[rows] @ right
            for tensor, share in stored:
                total.add_(tensor[rows].to(left.dtype), alpha=share)
            out[rows] = total.to(out)

    def one(self, piece: Piece, expert: int) -> Tensor:
        """Give one expert of a piece (n,), in its own type: a view where it is stored as it is."""
        if expert not in self.factors.get(piece.target, ()) and expert not in self.absent.get(piece.blocks, ()):
            return super().one(piece, expert)
        out = torch.empty(piece.shape, dtype=self.checkpoint.specs[piece.blocks[0][0]].dtype)
        self.average(out, piece, self._alone(expert))
        return out.view(-1)

    def rows(self, piece: Piece, chosen: Sequence[int], part: slice = slice(None)) -> Tensor:
        """Read a part of the chosen experts as rows (r, n); only the lines of the matrix that it cuts are built."""
        if piece.target not in self.factors:
            return super().rows(piece, chosen, part)
        begin, end, _ = part.indices(math.prod(piece.shape))
        width = piece.shape[1]
        lines = slice(begin // width, -(-end // width))
        cut = slice(begin - lines.start * width, end - lines.start * width)
        found = []
        for expert in chosen:
            stored = self.checkpoint.tensor(piece.blocks[expert][0])[lines]
            wide = stored.to(torch.promote_types(stored.dtype, torch.float32))
            product = self._product(piece, self._alone(expert))
            whole = wide if product is None else torch.addmm(wide, product[0][lines], product[1])
            found.append(whole.reshape(-1)[cut])
        return torch.stack(found)

    def _alone(self, expert: int) -> list[float]:
        return [float(k == expert) for k in range(self.count)]

    def _shares(self, piece: Piece, weights: Sequence[float]) -> dict[Block, float]:
        """Add up the weights of what is stored: block → weight; an expert's lack is filled with the others' mean."""
        lacking = self.absent.get(piece.blocks, frozenset())
        holders = [k for k in range(len(weights)) if k not in lacking]
        spread = math.fsum(weights[k] for k in lacking) / len(holders)
        found: dict[Block, list[float]] = {}
        for k in holders:
            found.setdefault(piece.blocks[k], []).append((weights[k] + spread) * piece.scale)
        shares = {block: math.fsum(own) for block, own in found.items()}
        if len(shares) == 1 and math.isclose(sum(shares.values()), 1.0, rel_tol=1e-9):
            return dict.fromkeys(shares, 1.0)  # a blend sums to 1 up to rounding
        return shares

    def _product(self, piece: Piece, weights: Sequence[float]) -> tuple[Tensor, Tensor] | None:
        """Put the weighted factors of a matrix (m, n) side by side: (m, R) and (R, n); None where none is active."""
        if not any(weights[k] for k in self.factors.get(piece.target, ())):
            return None
        wide = torch.promote_types(self.checkpoint.specs[piece.blocks[0][0]].dtype, torch.float32)
        stack = self._stack(piece.target)
        scales = torch.tensor(weights, dtype=wide)[stack.owners] * stack.scales.to(wide)  # (R,)
        ups, downs = stack.ups, stack.downs
        active = scales != 0
        if not active.all():
            scales, ups, downs = scales[active], ups[active], downs[active]
        ups, downs = ups.to(wide), downs.to(wide)
        if ups.shape[1] <= downs.shape[1]:  # the smaller of the two is weighted
            return (ups * scales[:, None]).T, downs
        return ups.T, downs * scales[:, None]

    def _stack(self, target: str) -> "_Stack":
        """Stack a matrix's factors when they are first asked for; they stay in memory, since all blends need them."""
        if target not in self._stacks:
            adds, read = self.factors[target], self.checkpoint.tensor
            sides = [(read(one.up.name).T, read(one.down.name)) for one in adds.values()]
            sides = [pair[::-1] if one.transposed else pair for pair, one in zip(sides, adds.values(), strict=True)]
            ranks = torch.tensor([len(up) for up, _ in sides])
            self._stacks[target] = _Stack(
                torch.cat([up for up, _ in sides]),
                torch.cat([down for _, down in sides]),
                torch.tensor(list(adds)).repeat_interleave(ranks),
                torch.tensor([one.scale for one in adds.values()], dtype=torch.float64).repeat_interleave(ranks),
            )
        return self._stacks[target]

    @cached_property
    def _stacks(self) -> dict[str, "_Stack"]:
        return {}


@dataclass(frozen=True, eq=False)
class _Stack:
    """All adapters' factors of one matrix W (m, n), one below the other, so that a blend is one product of them.

    In memory they lie as a product reads them fastest; side by side in files they would be gathered line by line.
    """

    ups: Tensor  # (R, m) the columns of every B
    downs: Tensor  # (R, n) the rows of every A
    owners: Tensor  # (R,) whose they are
    scales: Tensor  # (R,) s_k
