"""Kernel width, noise, variance and correlation, fitted to what was told."""

from typing import TYPE_CHECKING

import numpy as np

from tanbr.router.kernel import ROOT5, matern, squared_distance

if TYPE_CHECKING:
    from tanbr.router.posterior import PooledPosterior


def best_fit(pool: "PooledPosterior") -> tuple[float, float, float, float]:
    """Kernel width, noise and prior variance of highest marginal likelihood over the tasks, and their correlation."""
    used, config = pool.used, pool.config
    weights = pool.weights[:used]
    weight = np.maximum(weights.mean(axis=1), 1e-9)
    targets = np.where(weights > 0, pool.means[:used] - pool.expected(pool.arms[:used]), 0.0)
    squared = squared_distance(pool.arms[:used], pool.arms[:used])
    within, freedom = pool.scatter
    alike = bool((weights == weights[:, :1]).all())  # one matrix serves all tasks
    everywhere = np.ones(used, dtype=np.bool_)
    groups = [(everywhere, weight, targets)] if alike else [
        (seen, behind[seen], target[seen, None])
        for seen, behind, target in zip((weights > 0).T, weights.T, targets.T, strict=True) if seen.any()
    ]  # fmt: skip

    def likelihood(width: float, noise: float, variance: float) -> float:
        kernel = config.mean_variance + variance * matern(np.sqrt(squared / width**2) * ROOT5)
        fit = 0.0
        for seen, behind, target in groups:
            factor = np.linalg.cholesky(kernel[np.ix_(seen, seen)] + np.diag(noise / behind))
            white = np.linalg.solve(factor, target)
            fit += float((white * white).sum()) + target.shape[1] * 2.0 * float(np.log(np.diag(factor)).sum())
        return -0.5 * (fit + within / noise + freedom * np.log(noise))

    noises = np.clip(pool.noise * np.array([0.0625, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0]), 1e-6, 1.0)
    _, width, noise = max((likelihood(w, s, pool.variance), w, s) for w in config.widths for s in noises)
    variance = max(config.variances, key=lambda v: likelihood(width, noise, v))
    return float(width), float(noise), float(variance), tasks_correlation(pool, noise)


def tasks_correlation(pool: "PooledPosterior", noise: float) -> float:
    """How alike the tasks' rewards differ between blends; as it was, where they differ by no more than their noise.

    With e_v(x) what task v was told at arm x beyond the prior and its own mean, the mean of e_v·e_u over the pairs of
    tasks seen at one arm, over the mean of e_v² without its noise.
    """
    weights, arms = pool.weights[: pool.used], pool.arms[: pool.used]
    seen = weights > 0
    excess = np.where(seen, pool.means[: pool.used] - pool.expected(arms), 0.0)
    excess = np.where(seen, excess - excess.sum(axis=0) / np.maximum(seen.sum(axis=0), 1), 0.0)
    squares, told = float((excess**2).sum()), seen.sum(axis=1)
    pairs, chance = int((told * (told - 1)).sum()), float((noise / weights[seen]).sum())
    if squares <= 2.0 * chance or pairs == 0:
        return pool.correlation
    shared = (float((excess.sum(axis=1) ** 2).sum()) - squares) / pairs
    return float(np.clip(shared * seen.sum() / (squares - chance), 0.0, 1.0))
