"""Which task a request belongs to: look-ups in the sketches' log-tables, and a small logistic regression on top.

Naive Bayes is right far less often than it is sure, and EM believes what it is told. So a regression is fitted on
leave-one-out scores of the history, with every task weighing the same: its posteriors are those under a uniform prior.
A fitted classifier never changes, so any number of threads may read with it.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.features import RELATIONS, SURFACE, VIEWS, Features
from tanbr.monitor.sketch import log_likelihood
from tanbr.types import FloatArray

CLIP = 3.0  # standard deviations an input may be away: an odd request must not be sure of anything
PENALTY = 5e-4  # L2, on the weights; chosen on held-out parts of GLUE's train text
_OF_ANY_LENGTH = 2  # of VIEWS: every request has the same number of edges
_BYTES = VIEWS.index("bytes")

# Pairs of inputs (2, P) whose product is an input too. Inputs start with the surface: each with itself, lengths and
# overlaps with one another.
PRODUCTS = np.array(
    [
        (one, two)
        for one in range(len(SURFACE))
        for two in range(one, len(SURFACE))
        if one == two or {SURFACE[one], SURFACE[two]} <= set(RELATIONS)
    ]
).T


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted regression: inputs (n, F) to posteriors (n, A) of the A tasks that have a history."""

    centre: FloatArray  # (F,)
    scale: FloatArray  # (F,)
    weights: FloatArray  # (F + P, A)
    bias: FloatArray  # (A,)

    def posteriors(self, inputs: FloatArray) -> FloatArray:
        """Probability of each task (n, A) under a uniform prior."""
        scores = _design(inputs, self.centre, self.scale) @ self.weights + self.bias
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Classifier:
    """Knows the A of V tasks that have a history; none, if it was never fitted."""

    tasks: int  # V
    known: NDArray[np.int64]  # (A,)
    tables: NDArray[np.float32]  # (views, rows, width, A) log-probability behind each counter
    calibration: Calibration
    thresholds: FloatArray  # (A,) log-probability of a byte 3-gram that few of a task's own texts fall short of
    texts: int  # learned when it was fitted

    @staticmethod
    def empty(tasks: int) -> "Classifier":
        """Knows nothing."""
        flat, whole = np.zeros(0), np.zeros(0, dtype=np.int64)
        nothing = Calibration(flat, flat, np.zeros((0, 0)), flat)
        return Classifier(tasks, whole, np.zeros((0, 0, 0, 0), dtype=np.float32), nothing, flat, texts=0)

    @property
    def fitted(self) -> bool:
        """Whether it knows anything."""
        return len(self.known) > 0

    def read(self, features: Features) -> tuple[FloatArray, FloatArray]:
        """Posteriors under a uniform prior (n, V), 0 for tasks without history; and the familiarity (n,)."""
        scores = log_likelihood([features.views[name] for name in VIEWS], self.tables)
        posteriors = np.zeros((len(features), self.tasks))
        posteriors[:, self.known] = self.calibration.posteriors(inputs_of(features, scores))
        best, explained = explained_by(features, scores)
        return posteriors, explained - self.thresholds[best]


def inputs_of(features: Features, scores: FloatArray) -> FloatArray:
    """Give what the regression sees (n, F): surface, and log-likelihoods (views, n, A) by √length and by length."""
    centred = scores - scores.mean(axis=2, keepdims=True)
    lengths = np.array([features.views[name].lengths for name in VIEWS], dtype=np.float64)[:, :, None]
    by_length = centred[:_OF_ANY_LENGTH] / lengths[:_OF_ANY_LENGTH]
    return np.concatenate([features.surface, *(centred / np.sqrt(lengths)), *by_length], axis=1)


def explained_by(features: Features, scores: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Find the task that explains a request's bytes best (n,), and its mean log-probability of a byte 3-gram (n,)."""
    best = scores[_BYTES].argmax(axis=1)
    return best, scores[_BYTES][np.arange(len(best)), best] / features.views["bytes"].lengths


def calibrate(inputs: FloatArray, labels: NDArray[np.int64]) -> Calibration:
    """Fit the regression to inputs (n, F) and labels (n,), each of 0 … A − 1 at least once, until it converges."""
    sizes = np.bincount(labels)
    weight = (1.0 / (sizes * len(sizes)))[labels]  # every task weighs the same
    centre = weight @ inputs
    scale = np.sqrt(weight @ (inputs - centre) ** 2)
    scale = np.where(scale > 1e-9, scale, 1.0)
    design = _design(inputs, centre, scale)
    if len(sizes) == 1:  # one task alone is certain
        return Calibration(centre, scale, np.zeros((design.shape[1], 1)), np.zeros(1))
    from sklearn.exceptions import ConvergenceWarning  # half a second that a server that starts again never needs
    from sklearn.linear_model import LogisticRegression

    # newton-cg takes two thirds of L-BFGS's time at this tolerance, and ends nearer to the optimum
    model = LogisticRegression(C=1 / PENALTY, solver="newton-cg", tol=1e-6, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # tasks that can be told apart fully: near enough
        model.fit(design, labels, sample_weight=weight)
    if len(sizes) == 2:  # scikit-learn gives the second task's log-odds alone
        weights, bias = np.vstack([-model.coef_, model.coef_]).T / 2, np.r_[-1, 1] * model.intercept_ / 2
        return Calibration(centre, scale, weights, bias)
    return Calibration(centre, scale, model.coef_.T.copy(), model.intercept_)


def _design(inputs: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    """Standardised inputs and their products (n, F + P)."""
    standard = np.minimum(np.maximum((inputs - centre) / scale, -CLIP), CLIP)
    return np.concatenate([standard, standard[:, PRODUCTS[0]] * standard[:, PRODUCTS[1]]], axis=1)
