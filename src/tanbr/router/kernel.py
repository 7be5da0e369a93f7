"""How alike the rewards of two blends are, and what is expected of a blend before anything is told."""

import numpy as np

from tanbr.types import FloatArray

CENTRE = 0.5  # prior mean of a reward in [0, 1]
LEAST = 0.02  # weight below which a prior of shares no longer steepens
HALF = 0.3  # weight of a task's own expert at which about half of what it adds is there
ROOT5 = float(np.sqrt(5.0))


def matern(r: FloatArray) -> FloatArray:
    """Matérn-5/2 correlation at r = √5·distance/width, without the copies and checks of a library's kernel object."""
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


def squared_distance(left: FloatArray, right: FloatArray) -> FloatArray:
    """Squared Euclidean distances. (n, K), (m, K) to (n, m)."""
    squared = (left * left).sum(axis=1)[:, None] + (right * right).sum(axis=1) - 2.0 * (left @ right.T)
    return np.asarray(np.maximum(squared, 0.0))


def correlation(left: FloatArray, right: FloatArray, width: float) -> FloatArray:
    """Matérn-5/2 correlation of blends (n, K) and (m, K): (n, m)."""
    return matern(np.sqrt(squared_distance(left, right) / width**2) * ROOT5)


def rise(weight: FloatArray | float) -> FloatArray | float:
    """How much of what its own expert adds a task has when the expert has this weight: 0 at 0, 1 at 1, concave."""
    return weight * (1.0 + HALF) / (weight + HALF)


def share_value(weight: FloatArray) -> FloatArray:
    """How much of what it can add an expert is expected to add at a weight: 0 at 0, 1 at 1, a logarithm above `LEAST`.

    Σ_v ψ_v·share_value(x_v) is highest, over the simplex, where x = ψ (shares below `LEAST` fall away).
    """
    whole = 1.0 - np.log(LEAST)
    return np.asarray((np.log(np.maximum(weight, LEAST) / LEAST) + np.minimum(weight / LEAST, 1.0)) / whole)


def share_slope(weight: FloatArray) -> FloatArray:
    """Derivative of `share_value`."""
    return np.asarray(1.0 / (np.maximum(weight, LEAST) * (1.0 - np.log(LEAST))))
