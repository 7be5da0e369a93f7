"""Fisher merging: weights are averaged in proportion to the diagonal of each expert's Fisher matrix on its own task.

Matena, Raffel: Merging Models with Fisher-Weighted Averaging. NeurIPS 2022.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tanbr.lab.rivals.probes import Probe, Probes
from tanbr.merge import Moe
from tanbr.merge.measure import experts_alone, linears, watched

FLOOR = 1e-6  # of information, relative to its mean: where no expert knows anything, weights are averaged


def fisher(moe: Moe, probes: Probes) -> Any:
    """Merge the experts into a dense model: each parameter is Σ_k F_k θ_k / Σ_k F_k.

    Each F is scaled to a mean of 1, or experts in doubt would rule.
    """
    weighted, total = defaultdict[str, Any](int), defaultdict[str, Any](int)
    for model, own in experts_alone(moe, probes):
        for name, information in diagonal(model, linears(moe, model), own).items():
            mean = information.mean()
            share = information / mean + FLOOR if mean > 0 else torch.ones_like(information)
            weighted[name] += share * model.get_parameter(name).detach()
            total[name] += share
    merged = moe.dense()
    with torch.no_grad():
        for name, value in weighted.items():
            merged.get_parameter(name).copy_(value / total[name])
    return merged


def diagonal(model: Any, layers: Mapping[str, nn.Linear], probes: Sequence[Probe]) -> dict[str, Tensor]:
    """Sum over rows the squared gradients of −log p in the parameters of linear layers, by the parameters' names."""
    names = [f"{layer}.{name}" for layer, module in layers.items() for name, _ in module.named_parameters()]
    information = {name: torch.zeros_like(model.get_parameter(name), dtype=torch.float32) for name in names}
    for probe in probes:
        with watched(layers) as passes:
            surprises = probe.surprise(model(**probe.inputs).logits)  # (labels, n)
        outputs = [output for _, output in passes.values()]
        for number, surprise in enumerate(surprises, 1):
            slopes = torch.autograd.grad(surprise.sum(), outputs, retain_graph=number < len(surprises))
            for (name, (x, _)), slope in zip(passes.items(), slopes, strict=True):
                if x.dim() == 2:  # what follows a pooler sees one token of a row
                    x, slope = x[:, None], slope[:, None]
                # a row's gradient in the weight is Σ_t slope_t x_tᵀ over its tokens t, and Σ_t slope_t in the bias
                for one, seen in zip(slope.float(), x.detach().float(), strict=True):  # (length, out), (length, in)
                    information[f"{name}.weight"] += (one.T @ seen).square()
                if layers[name].bias is not None:
                    information[f"{name}.bias"] += slope.float().sum(dim=1).square().sum(dim=0)
    return information
