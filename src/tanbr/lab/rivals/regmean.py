"""RegMean: every merged linear layer is the one that answers most like each expert's on that expert's own inputs.

Jin, Ren, Preotiuc-Pietro, Cheng: Dataless Knowledge Fusion by Merging Weights of Language Models. ICLR 2023.
`merge/methods/regression.py` does the same for any blend, from the matrices that `measure` writes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tanbr.errors import OutputError
from tanbr.lab.rivals.probes import Probe, Probes, experts_alone, linears, real_tokens, watched
from tanbr.merge import Moe
from tanbr.merge.gram_matrices import FOLDER, FOLDER_MERGED, SHRINKAGE, shrunk, solved, write_gram_matrices
from tanbr.merge.skeleton import locate
from tanbr.moe.family import Site

RIDGE = 1e-6  # in float64; see `gram_matrices.RIDGE`


def regmean(moe: Moe, probes: Probes, *, shrinkage: float = SHRINKAGE) -> Any:
    """Merge the experts into a dense model; all that is not a linear layer's weight is averaged, biases too."""
    regressions: dict[str, Regression] = defaultdict(partial(Regression, shrinkage))
    for model, own in experts_alone(moe, probes):
        layers = linears(moe, model)
        for name, gram in grams(model, layers, own).items():
            regressions[name].add(layers[name].weight.detach(), gram)
    merged = moe.dense()
    with torch.no_grad():
        for name, layer in linears(moe, merged).items():
            layer.weight.copy_(regressions[name].solve(layer.weight))
    return merged


class Regression:
    """One linear layer's Wᵀ = (Σ_k G_k)⁻¹ Σ_k G_k W_kᵀ, which minimises Σ_k mean ‖W x − W_k x‖² over expert k's x.

    G_k is the mean of x xᵀ, off its diagonal times `shrinkage`.
    """

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


def measure(
    moe: Moe, probes: Probes, *, rows: int, merged: bool = False, report: Callable[[int], None] = lambda _: None
) -> Path:
    """Write each expert's Gram matrices beside the checkpoint, for merges by regression; `report` counts experts.

    Layers whose experts are all equal have none: they are averaged.
    With `merged` they are those of RegMean++, of what an expert sees behind layers that are merged already.
    """
    folder = moe.source.beside(FOLDER_MERGED if merged else FOLDER)
    if folder.exists():
        raise OutputError(f"{folder} is there already; remove it to measure anew")
    model = moe.dense()
    layers = _in_order(_learned(moe, linears(moe, model)), model, probes)
    shapes = {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}
    if merged:
        matrices = _behind_merged(moe, model, layers, probes, report)
    else:
        matrices = _alone(moe, list(layers), probes, report)
    return write_gram_matrices(
        folder, shapes, matrices, experts=moe.num_experts, by_layer=merged, fingerprint=moe.fingerprint, rows=rows
    )


def _learned(moe: Moe, layers: Mapping[str, nn.Linear]) -> Mapping[str, nn.Linear]:
    """Leave out layers whose experts are all equal, for there is nothing to solve; all stay if all are."""
    differ = {piece.target.removesuffix(".weight") for piece in moe.plan.blended if moe.source.differ(piece)}
    return {name: layer for name, layer in layers.items() if name in differ} or layers


def _in_order(layers: Mapping[str, nn.Linear], model: Any, probes: Probes) -> dict[str, nn.Linear]:
    """Put layers in the order in which they run."""
    with torch.no_grad(), watched(layers) as passes:
        model(**probes[0][0].inputs)
    return {name: layers[name] for name in passes}


def _alone(
    moe: Moe, names: Sequence[str], probes: Probes, report: Callable[[int], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Measure (G, G Wᵀ) expert after expert, each running alone."""
    for number, (model, own) in enumerate(experts_alone(moe, probes)):
        layers = linears(moe, model)
        found = grams(model, layers, own)
        yield from (_pair(found[name], layers[name]) for name in names)
        report(number + 1)


@torch.no_grad()
def _behind_merged(
    moe: Moe, model: Any, layers: Mapping[str, nn.Linear], probes: Probes, report: Callable[[int], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Measure (G, G Wᵀ) layer after layer; the FFNs before its own are merged, evenly and by regression.

    Each expert runs its own task's rows with its own FFN at the site that is measured.
    """
    K = moe.num_experts
    sites = dict.fromkeys(_site_of(moe)[name] for name in layers)  # in the order in which they run
    for done, site in enumerate(sites):
        own_layers = {name: layer for name, layer in layers.items() if _site_of(moe)[name] == site}
        pieces = [piece for piece in moe.plan.blended if piece.target in {part.target for part in site.parts}]
        found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in own_layers}
        for expert, own in enumerate(probes):
            for piece in pieces:
                moe.source.average(locate(model, piece.target)[piece.region], piece, np.eye(K)[expert].tolist())
            for name, gram in grams(model, own_layers, own).items():
                found[name].append(_pair(gram, layers[name]))
        for piece in pieces:
            moe.source.average(locate(model, piece.target)[piece.region], piece, [1 / K] * K)
        for name, pairs in found.items():
            left, right = (torch.stack(side).mean(dim=0) for side in zip(*pairs, strict=True))
            layers[name].weight.copy_(solved(left, right, layers[name].weight))
            yield from pairs
        report(K * (done + 1) // len(sites))


def _site_of(moe: Moe) -> dict[str, Site]:
    """Find the site that each linear layer belongs to."""
    return {part.target.rpartition(".")[0]: site for site in moe.sites for part in site.parts}


def _pair(gram: Tensor, layer: nn.Linear) -> tuple[Tensor, Tensor]:
    left = shrunk(gram)
    return left.float(), (left @ layer.weight.detach().to(left).T).float()


@torch.no_grad()
def grams(model: Any, layers: Mapping[str, nn.Linear], probes: Sequence[Probe]) -> dict[str, Tensor]:
    """Average x xᵀ over all real tokens x that each layer sees: (in, in) float64, by the layers' names."""
    sums: dict[str, Tensor] = {}
    tokens: dict[str, int] = {}
    for probe in probes:
        with watched(layers) as passes:
            model(**probe.inputs)
        for name, (seen, _) in passes.items():
            x = (
                seen if seen.dim() == 2 else seen[real_tokens(name, probe)]
            ).float()  # (m, in); a pooler sees no padding
            sums[name] = sums.get(name, 0) + (x.T @ x).double()
            tokens[name] = tokens.get(name, 0) + len(x)
    return {name: total / tokens[name] for name, total in sums.items()}
