"""Tasks without any labels: the traffic itself falls into V clusters, whose identities stay."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax

from tanbr.monitor.features import COARSE, Features
from tanbr.monitor.slot import UNKNOWN_QUANTILE
from tanbr.types import FloatArray

DIMENSIONS = len(COARSE)  # D
FIRST = 16  # distinct requests per task before they are clustered for the first time
SAMPLE = 4096  # distinct requests whose vectors are kept
REFIT_GROWTH = 0.25  # clusters are fitted again, between slots, when the traffic has grown by this share
_STARTS = 8  # k-means runs from scratch; the best is kept
_BETTER = 0.95  # a run from scratch must fit this much better to replace the present clusters
_CLIP = 4.0  # standard deviations a feature may be away
_FLOOR = 0.05  # least variance of a standardised feature within a cluster


@dataclass(frozen=True, eq=False)
class Clusters:
    """V Gaussians with diagonal covariance, in standardised units; all arrays are empty if they were never fitted."""

    centre: FloatArray  # (D,) of the vectors
    scale: FloatArray  # (D,)
    means: FloatArray  # (V, D)
    variances: FloatArray  # (V, D)
    threshold: float = 0.0  # log-density that few vectors fall short of

    @staticmethod
    def empty() -> "Clusters":
        """None yet."""
        return Clusters(np.zeros(0), np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)))

    @property
    def fitted(self) -> bool:
        """Whether there are any."""
        return len(self.centre) > 0

    def read(self, features: Features) -> tuple[FloatArray, FloatArray]:
        """Posteriors under a uniform prior (n, V), and the familiarity (n,): below 0 far from every cluster."""
        logs = _log_densities(
            _standard(features.surface[:, COARSE], self.centre, self.scale), self.means, self.variances
        )
        return np.asarray(softmax(logs, axis=1)), logs.max(axis=1) - self.threshold


@dataclass(frozen=True, eq=False)
class Clustering:
    """The vectors that clusters are fitted to, a bottom-k sample of all requests seen, and the clusters in use.

    A later fit starts from the present clusters, or is matched to them: cluster v stays cluster v.
    """

    keys: NDArray[np.uint64]  # (m,) hashes of requests, sorted and distinct
    vectors: FloatArray  # (m, D) their surface features
    means: FloatArray  # (V, D) of the last fit, in the vectors' own units; (V, 0) before the first
    model: Clusters
    seen: int = 0  # requests
    fitted_on: int = 0  # requests seen at the last fit

    @staticmethod
    def empty(tasks: int) -> "Clustering":
        """No requests."""
        keys, vectors = np.zeros(0, dtype=np.uint64), np.zeros((0, DIMENSIONS))
        return Clustering(keys, vectors, np.zeros((tasks, 0)), Clusters.empty())

    def add(self, keys: NDArray[np.uint64], vectors: FloatArray) -> "Clustering":
        """Take in requests: hashes (n,), vectors (n, D)."""
        seen = self.seen + len(keys)
        if len(self.keys) == SAMPLE:  # most requests are no news
            news = keys < self.keys[-1]
            keys, vectors = keys[news], vectors[news]
        kept, first = np.unique(np.concatenate([self.keys, keys]), return_index=True)
        every = np.concatenate([self.vectors, vectors])
        return replace(self, keys=kept[:SAMPLE], vectors=every[first[:SAMPLE]], seen=seen)

    def refreshed(self) -> "Clustering":
        """Forget the clusters if the traffic has grown enough since they were found."""
        outgrown = self.model.fitted and self.seen > (1 + REFIT_GROWTH) * self.fitted_on
        return replace(self, model=Clusters.empty()) if outgrown else self

    def fitted(self) -> "Clustering":
        """Find V clusters if there are none and enough distinct requests were seen."""
        tasks = len(self.means)
        if self.model.fitted or len(self.keys) < FIRST * tasks:
            return self
        centre, scale = self.vectors.mean(axis=0), self.vectors.std(axis=0)
        scale = np.where(scale > 1e-9, scale, 1.0)
        points = _standard(self.vectors, centre, scale)
        labels, spread = _k_means(points, tasks, n_init=_STARTS, random_state=0)
        if self.means.size:
            known = _standard(self.means, centre, scale)
            kept, spread_of_kept = _k_means(points, tasks, init=known, n_init=1)
            if spread > _BETTER * spread_of_kept:
                labels = kept
            else:
                means = _means(points, labels, tasks)
                distances = ((known[:, None] - means[None]) ** 2).sum(axis=2)
                labels = np.argsort(linear_sum_assignment(distances)[1])[labels]
        means = _means(points, labels, tasks)
        empty = np.bincount(labels, minlength=tasks) == 0
        within = _means((points - means[labels]) ** 2, labels, tasks)
        variances = np.where(empty[:, None], 1.0, np.maximum(within, _FLOOR))
        familiarity = _log_densities(points, means, variances).max(axis=1)
        found = Clusters(centre, scale, means, variances, float(np.quantile(familiarity, UNKNOWN_QUANTILE)))
        return replace(self, means=means * scale + centre, model=found, fitted_on=self.seen)


def _standard(vectors: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    return np.asarray(np.clip((vectors - centre) / scale, -_CLIP, _CLIP))


def _k_means(points: FloatArray, clusters: int, **options: Any) -> tuple[NDArray[np.int64], float]:
    """Give the cluster of each point (n,), and the sum of squared distances from the clusters' means."""
    from sklearn.cluster import KMeans  # takes half a second, which most servers never need
    from sklearn.exceptions import ConvergenceWarning

    k_means = KMeans(clusters, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters leave some empty
        k_means.fit(points)
    return np.asarray(k_means.labels_, dtype=np.int64), float(k_means.inertia_)


def _means(points: FloatArray, labels: NDArray[np.int64], clusters: int) -> FloatArray:
    """Mean of each cluster's points (V, D), summed in one order whatever the threads; 0 for an empty cluster."""
    sums = np.zeros((clusters, points.shape[1]))
    np.add.at(sums, labels, points)
    return np.asarray(sums / np.maximum(np.bincount(labels, minlength=clusters), 1)[:, None])


def _log_densities(points: FloatArray, means: FloatArray, variances: FloatArray) -> FloatArray:
    """Log-density of each point under each cluster (n, V)."""
    squares = points**2 @ (1 / variances).T - 2 * points @ (means / variances).T + (means**2 / variances).sum(axis=1)
    return np.asarray(-0.5 * (squares + np.log(variances).sum(axis=1)))
