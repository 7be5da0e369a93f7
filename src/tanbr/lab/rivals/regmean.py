"""RegMean: every merged linear layer is the one that answers most like each expert's on that expert's own inputs.

Jin, Ren, Preotiuc-Pietro, Cheng: Dataless Knowledge Fusion by Merging Weights of Language Models. ICLR 2023.
`merge/methods/regression.py` does the same for any blend, from the matrices that `measure` writes.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tanbr.errors import OutputError
from tanbr.lab.rivals.probes import Probes
from tanbr.merge import Moe
from tanbr.merge import measure as alone
from tanbr.merge.gram_matrices import FOLDER, SHRINKAGE, shrunk, solved

RIDGE = 1e-6  # in float64; see `gram_matrices.RIDGE`


def regmean(moe: Moe, probes: Probes, *, shrinkage: float = SHRINKAGE) -> Any:
    """Merge the experts into a dense model; all that is not a linear layer's weight is averaged, biases too.

    Every layer's Wᵀ is (Σ_k G_k)⁻¹ Σ_k G_k W_kᵀ; G_k is the mean of x xᵀ, off its diagonal times `shrinkage`.
    """
    left, right = defaultdict[str, Any](int), defaultdict[str, Any](int)  # (in, in), (in, out)
    for model, own in alone.experts_alone(moe, probes):
        layers = alone.linears(moe, model)
        for name, gram in alone.grams(model, layers, [probe.inputs for probe in own]).items():
            part = shrunk(gram, shrinkage)
            left[name] += part
            right[name] += part @ layers[name].weight.detach().to(part).T
    merged = moe.dense()
    with torch.no_grad():
        for name, layer in alone.linears(moe, merged).items():
            layer.weight.copy_(solved(left[name], right[name], layer.weight, ridge=RIDGE))
    return merged


def measure(moe: Moe, probes: Probes, *, rows: int, report: Callable[[int], None] = lambda _: None) -> Path:
    """Write the Gram matrices beside the experts."""
    folder = moe.source.beside(FOLDER)
    if folder.exists():
        raise OutputError(f"{folder} is there already; remove it to measure anew")
    return alone.measure(moe, [[one.inputs for one in own] for own in probes], folder, rows=rows, report=report)
