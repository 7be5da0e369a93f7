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
    spread = targets - targets.mean(axis=0)
    own = float((spread**2).mean() - (noise / weight).mean())
    shared = float((spread.mean(axis=1) ** 2).mean() * pool.tasks - (spread**2).mean()) / max(pool.tasks - 1, 1)
    correlation = float(np.clip(shared / max(own, 1e-6), 0.0, 1.0))
    return float(width), float(noise), float(variance), correlation
