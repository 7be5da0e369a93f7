"""From log-likelihoods and surface features to calibrated posteriors: a small logistic layer.

Naive Bayes is right far less often than it is sure, and EM believes what it is told. The layer is fitted on
leave-one-out scores of the history, with every task weighing the same, so that its posteriors are those under
a uniform prior.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from tanbr.types import FloatArray

CLIP = 3.0  # standard deviations an input may be away: an odd request must not be sure of anything


@dataclass(frozen=True, eq=False)
class Layer:
    """A fitted layer: inputs (n, F) to posteriors (n, V). Tasks without history have posterior 0."""

    centre: FloatArray  # (F,)
    scale: FloatArray  # (F,)
    products: NDArray[np.int64]  # (2, P) pairs of inputs whose product is an input too
    weights: FloatArray  # (F + P + 1, A): one column per task with history; the last row is the bias
    known: NDArray[np.int64]  # (A,) those tasks
    tasks: int

    def posteriors(self, inputs: FloatArray) -> FloatArray:
        """Probability of each task (n, V) under a uniform prior."""
        design = _design(inputs, self.centre, self.scale, self.products)
        result = np.zeros((len(inputs), self.tasks))
        result[:, self.known] = softmax(design @ self.weights, axis=1)
        return result


def fit(
    inputs: FloatArray, labels: NDArray[np.int64], *, products: NDArray[np.int64], tasks: int, penalty: float
) -> Layer:
    """Fit the layer to labelled inputs (n, F), (n,) with an L2 penalty; deterministic."""
    known, column = np.unique(labels, return_inverse=True)
    weight = (1.0 / (np.bincount(column) * len(known)))[column]  # every task weighs the same
    centre = weight @ inputs
    scale = np.sqrt(weight @ (inputs - centre) ** 2)
    scale = np.where(scale > 1e-9, scale, 1.0)
    design = _design(inputs, centre, scale, products)
    target = weight[:, None] * (column[:, None] == np.arange(len(known)))
    shape = (design.shape[1], len(known))
    decay = np.full(shape, penalty)
    decay[-1] = 0.0

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(shape)
        logs = log_softmax(design @ weights, axis=1)
        gradient = design.T @ (weight[:, None] * np.exp(logs) - target) + decay * weights
        return float(-(target * logs).sum() + 0.5 * (decay * weights**2).sum()), gradient.ravel()

    found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return Layer(centre, scale, products, found.x.reshape(shape), known, tasks)


def _design(inputs: FloatArray, centre: FloatArray, scale: FloatArray, products: NDArray[np.int64]) -> FloatArray:
    """Standardised inputs, their products, and a 1 for the bias (n, F + P + 1)."""
    standard = np.clip((inputs - centre) / scale, -CLIP, CLIP)
    crossed = standard[:, products[0]] * standard[:, products[1]]
    return np.concatenate([standard, crossed, np.ones((len(inputs), 1))], axis=1)
