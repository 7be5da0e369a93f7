"""The reward network f(x; θ) = √w θ_L σ(θ_{L−1} … σ(θ_1 x)) with V outputs, σ = ReLU, and its analytic gradient.

The analysis feeds [x, x]/√2 with ‖x‖ = 1 through block-diagonal layers so that f(x; θ_0) = 0. Both halves of such an
input get the same gradient, so θ_1 is kept folded, (left + right)/√2: the same function, the same training, and
p = wK + wV + w²(L − 2) numbers.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tanbr.router.rewards import RewardTable
from tanbr.types import FloatArray

Weights: TypeAlias = tuple[FloatArray, ...]  # θ: L matrices (w, K), (w, w) …, (V, w)


@dataclass(frozen=True, eq=False)
class Gradient:
    """∇_θ ψᵀf at n inputs in factored form: layer l of row n is the outer product back[l][n] ⊗ front[l][n].

    The last layer's `back` is √w ψ for every input, and kept as one row.
    """

    back: list[FloatArray]  # L arrays (n or 1, rows of θ_l)
    front: list[FloatArray]  # L arrays (n, columns of θ_l)

    def dense(self) -> FloatArray:
        """Return the gradient written out: (n, p)."""
        layers = zip(self.back, self.front, strict=True)
        return np.concatenate([(b[:, :, None] * f[:, None, :]).reshape(len(f), -1) for b, f in layers], axis=1)

    def inner(self, other: "Gradient") -> FloatArray:
        """Inner products with another set of gradients: (n, m)."""
        pairs = zip(self.back, self.front, other.back, other.front, strict=True)
        return np.asarray(sum((b @ ob.T) * (f @ of.T) for b, f, ob, of in pairs))


def unit(blends: FloatArray) -> FloatArray:
    """Scale blends (n, K) to ‖x‖₂ = 1 (Assumption 2)."""
    return np.asarray(blends / np.sqrt(np.einsum("nk,nk->n", blends, blends))[:, None])


def initial_weights(*, inputs: int, width: int, outputs: int, layers: int, rng: np.random.Generator) -> Weights:
    """θ_0: Gaussian and symmetric, so that f(x; θ_0) = 0 for every x."""
    half = width // 2
    first = rng.normal(0.0, np.sqrt(4.0 / width), (half, inputs)) / np.sqrt(2.0)
    weights = [np.vstack([first, first])]
    for _ in range(layers - 2):
        block, zero = rng.normal(0.0, np.sqrt(4.0 / width), (half, half)), np.zeros((half, half))
        weights.append(np.block([[block, zero], [zero, block]]))
    last = rng.normal(0.0, np.sqrt(2.0 / width), (outputs, half))
    return (*weights, np.hstack([last, -last]))


def _activations(weights: Weights, inputs: FloatArray) -> list[FloatArray]:
    """Compute the inputs of every layer: x, then the hidden layers."""
    layers = [inputs]
    for theta in weights[:-1]:
        layers.append(np.maximum(layers[-1] @ theta.T, 0.0))
    return layers


def predict(weights: Weights, inputs: FloatArray) -> FloatArray:
    """f(x; θ) at unit inputs (n, K): (n, V)."""
    hidden = _activations(weights, inputs)[-1]
    return np.asarray(np.sqrt(hidden.shape[1]) * (hidden @ weights[-1].T))


def value_and_gradient(weights: Weights, inputs: FloatArray, mix: FloatArray) -> tuple[FloatArray, Gradient]:
    """ψᵀf (n,) and its gradient at unit inputs (n, K)."""
    front = _activations(weights, inputs)
    root = float(front[-1].shape[1]) ** 0.5
    head = root * (mix @ weights[-1])  # (w,)
    back = [root * mix[None]]
    slope = head
    for layer in range(len(weights) - 1, 0, -1):
        slope = slope * (front[layer] > 0)  # σ′: (n, w)
        back.append(slope)
        if layer > 1:
            slope = slope @ weights[layer - 1]
    return front[-1] @ head, Gradient(back[::-1], front)


def loss_and_gradient(
    weights: Weights, start: Weights, data: RewardTable, *, ridge: float, scale: float
) -> tuple[float, list[FloatArray]]:
    """L(θ) = scale·Σ ½(f − r)² + λ/2 ‖θ − θ_0‖², up to a constant, and ∇L; the sum runs over what was seen."""
    front = _activations(weights, data.inputs)
    root = np.sqrt(front[-1].shape[1])
    error = root * (front[-1] @ weights[-1].T) - data.target  # (n, V)
    slope = scale * data.weight * error
    loss = 0.5 * float((slope * error).sum())
    slope = root * slope
    gradient = []
    for layer in range(len(weights) - 1, -1, -1):
        away = weights[layer] - start[layer]
        loss += 0.5 * ridge * float((away * away).sum())
        gradient.append(slope.T @ front[layer] + ridge * away)
        if layer:
            slope = (slope @ weights[layer]) * (front[layer] > 0)
    return loss, gradient[::-1]


def descend(
    weights: Weights,
    start: Weights,
    data: RewardTable,
    *,
    ridge: float,
    scale: float,
    rate: float,
    steps: int,
) -> tuple[Weights, float]:
    """J gradient steps of size η (line 14). A run that raises the loss is undone and repeated with half the step.

    The printed loss adds all slots up, so its curvature grows with t and any fixed η diverges in the end.
    Returns the new weights and the step size that worked.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging try is thrown away
        before, first = loss_and_gradient(weights, start, data, ridge=ridge, scale=scale)
        for _ in range(60):
            trial, gradient = weights, first
            for _ in range(steps):
                trial = tuple(theta - rate * slope for theta, slope in zip(trial, gradient, strict=True))
                after, gradient = loss_and_gradient(trial, start, data, ridge=ridge, scale=scale)
            if np.isfinite(after) and after <= before:
                return trial, rate
            rate *= 0.5
    return weights, rate
