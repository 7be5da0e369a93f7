"""From log-likelihoods and surface features to calibrated posteriors: a small logistic regression.

Naive Bayes is right far less often than it is sure, and EM believes what it is told. So a regression is fitted on
leave-one-out scores of the history, with every task weighing the same: its posteriors are those under a uniform prior.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from tanbr.types import FloatArray

CLIP = 3.0  # standard deviations an input may be away: an odd request must not be sure of anything


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted regression: inputs (n, F) to posteriors (n, A) of the A tasks that have a history."""

    products: NDArray[np.int64]  # (2, P) pairs of inputs whose product is an input too
    centre: FloatArray  # (F,)
    scale: FloatArray  # (F,)
    weights: FloatArray  # (F + P, A)
    bias: FloatArray  # (A,)

    def posteriors(self, inputs: FloatArray) -> FloatArray:
        """Probability of each task (n, A) under a uniform prior."""
        scores = _design(inputs, self.centre, self.scale, self.products) @ self.weights + self.bias
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def fit(
    inputs: FloatArray,  # (n, F)
    labels: NDArray[np.int64],  # (n,) in 0 … A − 1, each of them at least once
    *,
    products: NDArray[np.int64],
    penalty: float,
) -> Calibration:
    """Fit the regression with an L2 penalty. Run until it rests: the answer is the problem's, not the path's."""
    sizes = np.bincount(labels)
    weight = (1.0 / (sizes * len(sizes)))[labels]  # every task weighs the same
    centre = weight @ inputs
    scale = np.sqrt(weight @ (inputs - centre) ** 2)
    scale = np.where(scale > 1e-9, scale, 1.0)
    design = _design(inputs, centre, scale, products)
    if len(sizes) == 1:  # one task alone is certain
        return Calibration(products, centre, scale, np.zeros((design.shape[1], 1)), np.zeros(1))
    model = LogisticRegression(
        C=1 / penalty if penalty else np.inf, solver="newton-cg", tol=1e-6, max_iter=100
    )  # on 8 × 500 texts: two thirds of L-BFGS's time at this tolerance, and nearer to the optimum
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # without a penalty, separable tasks have no optimum
        model.fit(design, labels, sample_weight=weight)
    if len(sizes) == 2:  # scikit-learn gives the second task's log-odds alone
        return Calibration(
            products, centre, scale, np.vstack([-model.coef_, model.coef_]).T / 2, np.r_[-1, 1] * model.intercept_ / 2
        )
    return Calibration(products, centre, scale, model.coef_.T.copy(), model.intercept_)


def _design(inputs: FloatArray, centre: FloatArray, scale: FloatArray, products: NDArray[np.int64]) -> FloatArray:
    """Standardised inputs and their products (n, F + P)."""
    standard = np.minimum(np.maximum((inputs - centre) / scale, -CLIP), CLIP)
    return np.concatenate([standard, standard[:, products[0]] * standard[:, products[1]]], axis=1)
