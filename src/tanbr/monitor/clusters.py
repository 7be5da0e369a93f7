"""Tasks without any labels: the traffic itself is grouped into V latent tasks, whose identities stay."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from tanbr.errors import InputError
from tanbr.monitor.config import MonitorConfig
from tanbr.types import FloatArray

_STARTS = 8  # k-means runs from scratch; the best is kept
_ROUNDS = 50  # of one run, at most
_BETTER = 0.95  # a run from scratch must fit this much better to replace the groups at hand
_CLIP = 4.0  # standard deviations a feature may be away
_FLOOR = 0.05  # least variance of a standardised feature within a group


class Clusters:
    """Groups vectors (surface features, or a model's pooled embeddings) into V Gaussians with diagonal covariance.

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
        self._fit: tuple[FloatArray, FloatArray, FloatArray, FloatArray, float] | None = None

    @property
    def ready(self) -> bool:
        """Whether enough distinct requests were seen to group them."""
        return len(self._keys) >= self._config.cluster_start * self._tasks

    def add(self, keys: NDArray[np.uint64], vectors: FloatArray) -> None:
        """Take in requests: hashes (n,), vectors (n, D)."""
        self._keep(keys, vectors)
        self._seen += len(keys)

    def _keep(self, keys: NDArray[np.uint64], vectors: FloatArray) -> None:
        if not len(self._keys):
            self._vectors = np.zeros((0, vectors.shape[1]))
        if vectors.shape[1] != self._vectors.shape[1]:
            raise InputError(
                f"vectors must have the {self._vectors.shape[1]} dimensions of those before (got {vectors.shape[1]})"
            )
        if len(self._keys) == self._config.cluster_sample:  # most requests are no news
            news = keys < self._keys[-1]
            keys, vectors = keys[news], vectors[news]
        if not len(keys):
            return
        kept, first = np.unique(np.concatenate([self._keys, keys]), return_index=True)
        first = first[: self._config.cluster_sample]
        self._keys = kept[: self._config.cluster_sample]
        self._vectors = np.concatenate([self._vectors, vectors])[first]

    def merge(self, other: "Clusters") -> None:
        """Take in another's sample; the groups keep this one's identities, or take the other's if it has none."""
        if len(other._keys):
            self._keep(other._keys, other._vectors)
        if not len(self._means):
            self._means = other._means
        self._seen += other._seen
        self._fit = None

    def refresh(self) -> None:
        """Forget the fit if the traffic has grown enough since it was made."""
        if self._seen > (1 + self._config.refit_growth) * self._fitted_on:
            self._fit = None

    def read(self, vectors: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Posteriors under a uniform prior (n, V), and whether each request is far from every group (n,)."""
        centre, scale, means, variances, threshold = self._fit = self._fit or self._fitted()
        logs = _log_densities(_standard(vectors, centre, scale), means, variances)
        return np.exp(logs - logsumexp(logs, axis=1, keepdims=True)), logs.max(axis=1) < threshold

    def _fitted(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, float]:
        centre, scale = self._vectors.mean(axis=0), self._vectors.std(axis=0)
        scale = np.where(scale > 1e-9, scale, 1.0)
        points = _standard(self._vectors, centre, scale)
        seeds = [_seeded(points, self._tasks, np.random.default_rng(number)) for number in range(_STARTS)]
        means, labels = min((_k_means(points, seed) for seed in seeds), key=lambda run: _inertia(points, *run))
        if len(self._means):
            known = _standard(self._means, centre, scale)
            kept, kept_labels = _k_means(points, known)
            if _inertia(points, means, labels) > _BETTER * _inertia(points, kept, kept_labels):
                means, labels = kept, kept_labels
            else:
                distances = ((known[:, None] - means[None]) ** 2).sum(axis=2)
                order = linear_sum_assignment(distances)[1]
                means, labels = means[order], np.argsort(order)[labels]
        spread = [
            points[labels == v].var(axis=0) if (labels == v).any() else np.ones_like(centre) for v in range(self._tasks)
        ]
        variances = np.maximum(np.array(spread), _FLOOR)
        self._means = means * scale + centre
        self._fitted_on = self._seen
        familiarity = _log_densities(points, means, variances).max(axis=1)
        return centre, scale, means, variances, float(np.quantile(familiarity, self._config.unknown_quantile))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the whole state, by name."""
        counts = np.array([self._seen, self._fitted_on])
        return {"keys": self._keys, "vectors": self._vectors, "means": self._means, "counts": counts}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave."""
        self._keys, self._vectors, self._means = arrays["keys"], arrays["vectors"], arrays["means"]
        self._seen, self._fitted_on = (int(count) for count in arrays["counts"])
        self._fit = None


def _standard(vectors: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    return np.asarray(np.clip((vectors - centre) / scale, -_CLIP, _CLIP))


def _seeded(points: FloatArray, groups: int, rng: np.random.Generator) -> FloatArray:
    """Choose means far from one another (k-means++, Arthur and Vassilvitskii 2007)."""
    chosen = [int(rng.integers(len(points)))]
    for _ in range(groups - 1):
        nearest = _squares(points, points[chosen]).min(axis=1)
        total = float(nearest.sum())  # 0 when there are fewer distinct points than groups
        chosen.append(int(rng.choice(len(points), p=nearest / total if total > 0 else None)))
    return points[chosen]


def _k_means(points: FloatArray, means: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    """Move the means to the points nearest to them until they rest; one without points stays where it is."""
    means = means.copy()
    labels = _squares(points, means).argmin(axis=1)
    for _ in range(_ROUNDS):
        for group in np.unique(labels):
            means[group] = points[labels == group].mean(axis=0)
        before, labels = labels, _squares(points, means).argmin(axis=1)
        if np.array_equal(before, labels):
            break
    return means, labels


def _squares(points: FloatArray, means: FloatArray) -> FloatArray:
    """Squared distance of each point from each mean (n, k)."""
    return np.asarray(np.maximum((points**2).sum(1)[:, None] - 2 * points @ means.T + (means**2).sum(1), 0.0))


def _inertia(points: FloatArray, means: FloatArray, labels: NDArray[np.int64]) -> float:
    return float(((points - means[labels]) ** 2).sum())


def _log_densities(points: FloatArray, means: FloatArray, variances: FloatArray) -> FloatArray:
    """Log-density of each point under each group (n, V)."""
    squares = points**2 @ (1 / variances).T - 2 * points @ (means / variances).T + (means**2 / variances).sum(axis=1)
    return np.asarray(-0.5 * (squares + np.log(variances).sum(axis=1)))
