"""Tasks without any labels: the traffic itself is grouped into V latent tasks, whose identities stay."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from tanbr.errors import InputError
from tanbr.monitor.bounds import bounded
from tanbr.monitor.config import MonitorConfig
from tanbr.types import FloatArray

_STARTS = 8  # k-means runs from scratch; the best is kept
_BETTER = 0.95  # a run from scratch must fit this much better to replace the groups at hand
_CLIP = 4.0  # standard deviations a feature may be away
_FLOOR = 0.05  # least variance of a standardised feature within a group


@dataclass(frozen=True, eq=False)
class Groups:
    """V Gaussians with diagonal covariance, in standardised units. Never changes."""

    centre: FloatArray  # (D,) of the vectors
    scale: FloatArray  # (D,)
    means: FloatArray  # (V, D)
    variances: FloatArray  # (V, D)
    threshold: float  # log-density that few vectors fall short of

    def takes(self, vectors: FloatArray) -> bool:
        """Whether the vectors (n, D) are of the kind that was grouped."""
        return vectors.shape[1] == len(self.centre)

    def read(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Posteriors under a uniform prior (n, V), and the familiarity (n,): below 0 far from every group."""
        logs = _log_densities(_standard(vectors, self.centre, self.scale), self.means, self.variances)
        return np.asarray(softmax(logs, axis=1)), logs.max(axis=1) - self.threshold


class Clusters:
    """Groups vectors: surface features, or a model's pooled embeddings.

    Fitted on a bottom-k sample of all requests seen, so the fit depends neither on their order nor on which replica
    saw them. A later fit starts from the groups at hand, or is matched to them: group v stays group v.
    """

    def __init__(self, tasks: int, config: MonitorConfig) -> None:
        self._tasks, self._config = tasks, config
        self._keys = np.zeros(0, dtype=np.uint64)
        self._vectors: FloatArray = np.zeros((0, 0))
        self._seen = 0  # requests
        self._fitted_on = 0  # requests seen at the last fit
        self._means: FloatArray = np.zeros((0, 0))  # (V, D), in the vectors' own units
        self._groups: Groups | None = None

    @property
    def groups(self) -> Groups | None:
        """The groups, found now if there are none; None before enough distinct requests were seen."""
        if self._groups is None and len(self._keys) >= self._config.cluster_start * self._tasks:
            self._groups = self._fitted()
        return self._groups

    def add(self, keys: NDArray[np.uint64], vectors: FloatArray) -> None:
        """Take in requests: hashes (n,), vectors (n, D)."""
        self._keep(keys, vectors)
        self._seen += len(keys)

    def _keep(self, keys: NDArray[np.uint64], vectors: FloatArray) -> None:
        if not len(keys):
            return
        if not len(self._keys):
            self._vectors = np.zeros((0, vectors.shape[1]))
        if vectors.shape[1] != self._vectors.shape[1]:
            raise InputError(
                f"vectors must have the {self._vectors.shape[1]} dimensions of those before (got {vectors.shape[1]})"
            )
        if len(self._keys) == self._config.cluster_sample:  # most requests are no news
            news = keys < self._keys[-1]
            keys, vectors = keys[news], vectors[news]
        kept, first = np.unique(np.concatenate([self._keys, keys]), return_index=True)
        first = first[: self._config.cluster_sample]
        self._keys = kept[: self._config.cluster_sample]
        self._vectors = np.concatenate([self._vectors, vectors])[first]

    def merge(self, other: "Clusters") -> None:
        """Take in another's sample; the groups keep this one's identities, or take the other's if it has none."""
        self._keep(other._keys, other._vectors)
        if not len(self._means):
            self._means = other._means
        self._seen += other._seen
        self._groups = None

    def refresh(self) -> None:
        """Forget the groups if the traffic has grown enough since they were found."""
        if self._seen > (1 + self._config.refit_growth) * self._fitted_on:
            self._groups = None

    def _fitted(self) -> Groups:
        centre, scale = self._vectors.mean(axis=0), self._vectors.std(axis=0)
        scale = np.where(scale > 1e-9, scale, 1.0)
        points = _standard(self._vectors, centre, scale)
        labels = _labels(points, KMeans(self._tasks, n_init=_STARTS, random_state=0))
        if len(self._means):
            known = _standard(self._means, centre, scale)
            kept = _labels(points, KMeans(self._tasks, init=known, n_init=1))
            if _within(points, labels) > _BETTER * _within(points, kept):
                labels = kept
            else:
                means = _means(points, labels, self._tasks)
                distances = ((known[:, None] - means[None]) ** 2).sum(axis=2)
                labels = np.argsort(linear_sum_assignment(distances)[1])[labels]
        means = _means(points, labels, self._tasks)
        spread = _means((points - means[labels]) ** 2, labels, self._tasks)
        empty = np.bincount(labels, minlength=self._tasks) == 0
        variances = np.where(empty[:, None], 1.0, np.maximum(spread, _FLOOR))
        self._means, self._fitted_on = means * scale + centre, self._seen
        familiarity = _log_densities(points, means, variances).max(axis=1)
        return Groups(centre, scale, means, variances, float(np.quantile(familiarity, self._config.unknown_quantile)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the whole state, by name, with the groups in use: vectors seen since are not in them yet."""
        found = self._groups or Groups(np.zeros(0), np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)), 0.0)
        return {
            "keys": self._keys,
            "vectors": self._vectors,
            "means": self._means,
            "counts": np.array([self._seen, self._fitted_on]),
            "groups.centre": found.centre,
            "groups.scale": found.scale,
            "groups.means": found.means,
            "groups.variances": found.variances,
            "groups.threshold": np.array(found.threshold),
        }

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave; ValueError for one that cannot be."""
        keys, vectors, means, counts = (arrays[name] for name in ("keys", "vectors", "means", "counts"))
        centre, scale, places, variances = (
            arrays[f"groups.{name}"] for name in ("centre", "scale", "means", "variances")
        )
        groups = Groups(centre, scale, places, variances, float(arrays["groups.threshold"]))
        D, V = vectors.shape[1], self._tasks
        sound = len(vectors) == len(keys) and bool((keys[1:] > keys[:-1]).all()) and bool((counts >= 0).all())
        sound = (
            sound and means.shape in ((V, D), (0, 0)) and bounded(*(arrays[name] for name in arrays if name != "keys"))
        )
        if len(groups.centre):
            sound = sound and groups.centre.shape == groups.scale.shape == (D,) and bool((groups.scale > 0).all())
            sound = sound and groups.means.shape == groups.variances.shape == (V, D)
            sound = sound and bool((groups.variances > 0).all())
        if not sound:
            raise ValueError("its groups or the vectors behind them are not of one piece")
        self._keys, self._vectors, self._means = keys, vectors, means
        self._seen, self._fitted_on = (int(count) for count in counts)
        self._groups = groups if len(groups.centre) else None


def _standard(vectors: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    return np.asarray(np.clip((vectors - centre) / scale, -_CLIP, _CLIP))


def _labels(points: FloatArray, k_means: KMeans) -> NDArray[np.int64]:
    """Give the group of each point (n,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than groups leave some empty
        return np.asarray(k_means.fit(points).labels_, dtype=np.int64)


def _means(points: FloatArray, labels: NDArray[np.int64], groups: int) -> FloatArray:
    """Mean of each group's points (groups, D), by one order of summation whatever the threads; 0 for an empty group."""
    sums = np.zeros((groups, points.shape[1]))
    np.add.at(sums, labels, points)
    return np.asarray(sums / np.maximum(np.bincount(labels, minlength=groups), 1)[:, None])


def _within(points: FloatArray, labels: NDArray[np.int64]) -> float:
    """Sum of squared distances from the means of the groups."""
    return float(((points - _means(points, labels, int(labels.max()) + 1)[labels]) ** 2).sum())


def _log_densities(points: FloatArray, means: FloatArray, variances: FloatArray) -> FloatArray:
    """Log-density of each point under each group (n, V)."""
    squares = points**2 @ (1 / variances).T - 2 * points @ (means / variances).T + (means**2 / variances).sum(axis=1)
    return np.asarray(-0.5 * (squares + np.log(variances).sum(axis=1)))
