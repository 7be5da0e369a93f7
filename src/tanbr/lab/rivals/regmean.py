"""RegMean: every merged linear layer is the one that answers most like each expert's on that expert's own inputs.

Jin, Ren, Preotiuc-Pietro, Cheng: Dataless Knowledge Fusion by Merging Weights of Language Models. ICLR 2023.
`merge/methods/regression.py` does the same for any blend, from the matrices that `measure` writes.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tanbr.errors import OutputError
from tanbr.lab.rivals.probes import Probe, Probes
from tanbr.merge import Moe
from tanbr.merge import measure as alone
from tanbr.merge.gram_matrices import FOLDER, SHRINKAGE, shrunk, solved

RIDGE = 1e-6  # in float64; see `gram_matrices.RIDGE`


def regmean(moe: Moe, probes: Probes, *, shrinkage: float = SHRINKAGE) -> Any:
    """Merge the experts into a dense model; all that is not a linear layer's weight is averaged, biases too."""
    regressions: dict[str, Regression] = defaultdict(partial(Regression, shrinkage))
    for model, own in alone.experts_alone(moe, probes):
        layers = alone.linears(moe, model)
        for name, gram in grams(model, layers, own).items():
            regressions[name].add(layers[name].weight.detach(), gram)
    merged = moe.dense()
    with torch.no_grad():
        for name, layer in alone.linears(moe, merged).items():
            layer.weight.copy_(regressions[name].solve(layer.weight))
    return merged


class Regression:
    """One linear layer's Wᵀ = (Σ_k G_k)⁻¹ Σ_k G_k W_kᵀ; G_k is the mean of x xᵀ, off its diagonal times `shrinkage`."""

    def __init__(self, shrinkage: float = SHRINKAGE) -> None:
        self._shrinkage = shrinkage
        self._left: Tensor | int = 0  # (in, in)
        self._right: Tensor | int = 0  # (in, out)

    def add(self, weight: Tensor, gram: Tensor) -> None:
        """Take in an expert's weight (out, in) and the Gram matrix (in, in) of its inputs."""
        part = shrunk(gram, self._shrinkage)
        self._left = self._left + part
        self._right = self._right + part @ weight.to(part).T

    def solve(self, average: Tensor) -> Tensor:
        """Solve for the merged weight (out, in); `average` is what unseen directions of the input get."""
        return solved(torch.as_tensor(self._left), torch.as_tensor(self._right), average, ridge=RIDGE)


def measure(moe: Moe, probes: Probes, *, rows: int, report: Callable[[int], None] = lambda _: None) -> Path:
    """Write the Gram matrices beside the experts."""
    folder = moe.source.beside(FOLDER)
    if folder.exists():
        raise OutputError(f"{folder} is there already; remove it to measure anew")
    return alone.measure(moe, [[one.inputs for one in own] for own in probes], folder, rows=rows, report=report)


def grams(model: Any, layers: Mapping[str, nn.Linear], probes: Sequence[Probe]) -> dict[str, Tensor]:
    """Average x xᵀ over all real tokens x that each layer sees: (in, in) float64, by the layers' names."""
    return alone.grams(model, layers, [probe.inputs for probe in probes])
