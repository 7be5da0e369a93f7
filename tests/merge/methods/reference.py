"""Slow references in float64 on whole tensors, for every method that needs nothing.

The tolerance is an error bound: a merge in float32 of r experts does at most some n roundings a weight, each of half a
unit in the last place of what is added up, whose size is at most the largest weight times what the method scales by.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import tanbr
from moe.tiny import K
from tanbr.merge import Moe

EPS = torch.finfo(torch.float32).eps


BLENDS = [[0.25] * K, [0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0]]


@dataclass(frozen=True)
class Case:
    """The experts of one dense tensor (K, …) in float64, a blend, and the base."""

    experts: Tensor
    blend: Tensor
    base: Tensor

    @property
    def active(self) -> tuple[Tensor, Tensor]:
        return self.experts[self.blend > 0], self.blend[self.blend > 0]


def cases(moe: Moe, blend: list[float], base: dict[str, Tensor] | None = None) -> dict[str, Case]:
    alone = [dict(tanbr.open(moe.path).tensors(np.eye(K)[k], changing=True)) for k in range(K)]
    stacked = {name: torch.stack([one[name] for one in alone]).double() for name in alone[0]}
    weights = torch.tensor(blend, dtype=torch.float64)
    return {
        name: Case(experts, weights, experts.mean(dim=0) if base is None else base[name].double())
        for name, experts in stacked.items()
    }


def compare(
    moe: Moe, blend: list[float], reference, *, roundings: float, base: dict[str, Tensor] | None = None
) -> None:
    tensors = dict(moe.tensors(blend, changing=True))
    for name, case in cases(moe, blend, base).items():
        expected = reference(case)
        bound = roundings * EPS * float(max(case.experts.abs().max(), case.base.abs().max()))
        assert float((tensors[name].double() - expected).abs().max()) <= bound, name


def weighted(rows: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("k,k...->...", weights, rows)
