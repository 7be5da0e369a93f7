"""Which task a request belongs to: look-ups in the sketches' log-tables, and a calibrated regression on top.

A fitted classifier never changes, so any number of threads may read with it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.bounds import bounded
from tanbr.monitor.calibration import Calibration
from tanbr.monitor.features import RELATIONS, SURFACE, VIEWS, Features
from tanbr.monitor.sketch import log_likelihood
from tanbr.types import FloatArray

_OF_ANY_LENGTH = 2  # of VIEWS: every request has the same number of edges
_BYTES = VIEWS.index("bytes")

# Inputs of the regression, which start with the surface, that are multiplied: each with itself, lengths and overlaps
# with one another.
PRODUCTS = np.array(
    [
        (one, two)
        for one in range(len(SURFACE))
        for two in range(one, len(SURFACE))
        if one == two or {SURFACE[one], SURFACE[two]} <= set(RELATIONS)
    ]
).T


@dataclass(frozen=True, eq=False)
class Classifier:
    """Knows the A of V tasks that have a history."""

    tasks: int  # V
    known: NDArray[np.int64]  # (A,)
    tables: NDArray[np.float32]  # (views, rows, width, A) log-probability behind each counter
    calibration: Calibration
    thresholds: FloatArray  # (A,) log-probability of a byte 3-gram that few of a task's own texts fall short of
    texts: int  # learned when it was fitted

    def read(self, features: Features) -> tuple[FloatArray, FloatArray]:
        """Posteriors under a uniform prior (n, V), 0 for tasks without history; and the familiarity (n,)."""
        scores = log_likelihood([features.views[name] for name in VIEWS], self.tables)
        posteriors = np.zeros((len(features), self.tasks))
        posteriors[:, self.known] = self.calibration.posteriors(inputs_of(features, scores))
        best, explained = explained_by(features, scores)
        return posteriors, explained - self.thresholds[best]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give it whole, by name."""
        return {
            "known": self.known,
            "tables": self.tables,
            "centre": self.calibration.centre,
            "scale": self.calibration.scale,
            "weights": self.calibration.weights,
            "bias": self.calibration.bias,
            "thresholds": self.thresholds,
            "texts": np.array([self.texts]),
        }

    @staticmethod
    def absent() -> dict[str, NDArray[Any]]:
        """Give the arrays of none."""
        flat, whole = np.zeros(0), np.zeros(0, dtype=np.int64)
        return {
            "known": whole,
            "tables": np.zeros((0, 0, 0, 0), dtype=np.float32),
            "centre": flat,
            "scale": flat,
            "weights": np.zeros((0, 0)),
            "bias": flat,
            "thresholds": flat,
            "texts": whole,
        }

    @staticmethod
    def restored(
        arrays: dict[str, NDArray[Any]], *, tasks: int, learned: NDArray[np.int64], table: tuple[int, int]
    ) -> "Classifier | None":
        """Take what `arrays` or `absent` gave; ValueError for what cannot belong to these tasks and tables."""
        known, centre, scale, bias = (arrays[name] for name in ("known", "centre", "scale", "bias"))
        if all(array.size == 0 for array in arrays.values()):
            return None
        A = len(known)
        F = len(SURFACE) + (len(VIEWS) + _OF_ANY_LENGTH) * A
        shapes = {
            "known": (A,), "tables": (len(VIEWS), *table, A), "centre": (F,), "scale": (F,),
            "weights": (F + PRODUCTS.shape[1], A), "bias": (A,), "thresholds": (A,), "texts": (1,),
        }  # fmt: skip
        if any(arrays[name].shape != shape for name, shape in shapes.items()) or not bounded(*arrays.values()):
            raise ValueError("its classifier is not of one piece")
        fits = A and known[0] >= 0 and known[-1] < tasks and (np.diff(known) > 0).all() and (learned[known] > 0).all()
        if not fits or (scale <= 0).any() or (arrays["tables"] > 0).any() or arrays["texts"][0] < 0:
            raise ValueError("its classifier is of other tasks")
        calibration = Calibration(PRODUCTS, centre, scale, arrays["weights"], bias)
        return Classifier(tasks, known, arrays["tables"], calibration, arrays["thresholds"], int(arrays["texts"][0]))


def inputs_of(features: Features, scores: FloatArray) -> FloatArray:
    """Give what the regression sees of each request (n, F): surface, log-likelihoods by √length and by length.

    `scores` are the log-likelihoods (views, n, A), in the order of VIEWS.
    """
    centred = scores - scores.mean(axis=2, keepdims=True)
    lengths = np.array([features.views[name].lengths for name in VIEWS], dtype=np.float64)[:, :, None]
    by_length = centred[:_OF_ANY_LENGTH] / lengths[:_OF_ANY_LENGTH]
    return np.concatenate([features.surface, *(centred / np.sqrt(lengths)), *by_length], axis=1)


def explained_by(features: Features, scores: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Find the task that explains a request's bytes best (n,), and its mean log-probability of a byte 3-gram (n,)."""
    best = scores[_BYTES].argmax(axis=1)
    return best, scores[_BYTES][np.arange(len(best)), best] / features.views["bytes"].lengths
