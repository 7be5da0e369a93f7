"""RegMean: every merged linear layer is the one that answers most like each expert's on that expert's own inputs.

Jin, Ren, Preotiuc-Pietro, Cheng: Dataless Knowledge Fusion by Merging Weights of Language Models. ICLR 2023.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tanbr.baselines.probes import Probe, Probes, experts_alone, linears, real_tokens, watched
from tanbr.merge import Moe

SHRINKAGE = 0.9  # α, what is left of a Gram matrix beside its diagonal
RIDGE = 1e-6  # relative to the mean of the diagonal: inputs that no expert has seen take the average


def regmean(moe: Moe, probes: Probes, *, shrinkage: float = SHRINKAGE) -> Any:
    """Merge the experts into a dense model: Wᵀ = (Σ_k G_k)⁻¹ Σ_k G_k W_kᵀ per linear layer; biases are averaged.

    G_k is the mean of x xᵀ over expert k's own inputs x, off its diagonal times `shrinkage`.
    """
    merged = moe.dense()  # all that is not a linear layer's weight stays averaged
    total: dict[str, Tensor] = {}  # (in, in)
    weighted: dict[str, Tensor] = {}  # (in, out)
    for model, own in experts_alone(moe, probes):
        layers = linears(moe, model)
        for name, gram in grams(model, layers, own).items():
            part = shrinkage * gram + (1 - shrinkage) * gram.diagonal().diag()
            total[name] = total.get(name, 0) + part
            weighted[name] = weighted.get(name, 0) + part @ layers[name].weight.detach().double().T
    with torch.no_grad():
        for name, layer in linears(moe, merged).items():
            ridge = RIDGE * total[name].diagonal().mean()
            left = total[name] + ridge * torch.eye(len(total[name]))
            right = weighted[name] + ridge * layer.weight.double().T  # which is still the average
            layer.weight.copy_(torch.linalg.solve(left, right).T)
    return merged


@torch.no_grad()
def grams(model: Any, layers: Mapping[str, nn.Linear], probes: Sequence[Probe]) -> dict[str, Tensor]:
    """Average x xᵀ over all real tokens x that each layer sees: (in, in) float64, by the layers' names."""
    sums: dict[str, Tensor] = {}
    tokens: dict[str, int] = {}
    for probe in probes:
        with watched(layers) as passes:
            model(**probe.inputs)
        for name, (seen, _) in passes.items():
            x = seen[real_tokens(name, probe)].float()  # (m, in)
            sums[name] = sums.get(name, 0) + (x.T @ x).double()
            tokens[name] = tokens.get(name, 0) + len(x)
    return {name: total / tokens[name] for name, total in sums.items()}
