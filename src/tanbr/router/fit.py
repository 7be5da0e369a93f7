"""Kernel width, noise, variance, lift and correlation, fitted to what was told."""

from typing import TYPE_CHECKING

import numpy as np

from tanbr.router.kernel import CENTRE, ROOT5, matern, squared_distance

if TYPE_CHECKING:
    from tanbr.router.posterior import PooledPosterior

DOUBT = 0.2  # standard deviation of the lift around what was expected of it
CAUTION = 2.0  # standard errors by which it must lie below that to count as lower


class Evidence:
    """Marginal likelihood of what was told, over the tasks, with the lift that makes it highest.

    The lift λ is the one coefficient of the prior mean, 1/2 + λ·feature, and a normal variable around `own_lift`
    with deviation `DOUBT`: given the kernel, its best value has a closed form (generalised least squares).
    """

    def __init__(self, pool: "PooledPosterior") -> None:
        used, self._config = pool.used, pool.config
        weights = pool.weights[:used]
        offset = np.where(weights > 0, pool.means[:used] - CENTRE, 0.0)  # (used, V)
        feature = np.where(weights > 0, pool.feature(pool.arms[:used]), 0.0)
        self._squared = squared_distance(pool.arms[:used], pool.arms[:used])
        self._within, self._freedom = pool.scatter
        alike = bool((weights == weights[:, :1]).all())  # one matrix serves all tasks
        groups = [slice(None)] if alike else [slice(task, task + 1) for task in range(pool.tasks)]
        self._groups = [
            (seen, weights[seen, tasks][:, 0], offset[seen, tasks], feature[seen, tasks])
            for tasks in groups if (seen := weights[:, tasks][:, 0] > 0).any()
        ]  # fmt: skip

    def __call__(self, width: float, noise: float, variance: float) -> tuple[float, float, float]:
        """The logarithm of the likelihood, up to a constant, and the lift with its standard error."""
        kernel = self._config.mean_variance + variance * matern(np.sqrt(self._squared / width**2) * ROOT5)
        square, slope, curve, volume = 0.0, 0.0, DOUBT**-2, 0.0
        for seen, behind, offset, feature in self._groups:
            factor = np.linalg.cholesky(kernel[np.ix_(seen, seen)] + np.diag(noise / behind))
            target = offset - self._config.own_lift * feature
            white, tilt = np.split(np.linalg.solve(factor, np.hstack([target, feature])), 2, axis=1)
            square += float((white * white).sum())
            slope += float((white * tilt).sum())
            curve += float((tilt * tilt).sum())
            volume += target.shape[1] * 2.0 * float(np.log(np.diag(factor)).sum())
        more = float(np.clip(slope / curve, -self._config.own_lift, 1.0 - self._config.own_lift))
        fit = square - 2.0 * more * slope + more * more * curve + volume
        return (
            -0.5 * (fit + self._within / noise + self._freedom * np.log(noise)),
            self._config.own_lift + more,
            curve**-0.5,
        )


def best_fit(pool: "PooledPosterior") -> tuple[float, float, float, float]:
    """Kernel width, noise, prior variance and lift of highest marginal likelihood over the tasks."""
    evidence, config = Evidence(pool), pool.config
    noises = np.clip(pool.noise * np.array([0.0625, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0]), 1e-6, 1.0)
    _, width, noise = max((evidence(w, s, pool.variance)[0], w, s) for w in config.widths for s in noises)
    variance = max(config.variances, key=lambda v: evidence(width, noise, v)[0])
    return float(width), float(noise), float(variance), _cautious(evidence(width, noise, variance), config.own_lift)


def best_lift(pool: "PooledPosterior") -> float:
    """The lift that the rewards speak for, with the kernel as it is."""
    return _cautious(Evidence(pool)(pool.width, pool.noise, pool.variance), pool.config.own_lift)


def _cautious(found: tuple[float, float, float], expected: float) -> float:
    """Go below what was expected of the lift only as far as the rewards say for sure.

    Too high a lift follows the mix too closely; too low a one stays with a blend that the mix has left.
    """
    _, lift, error = found
    return max(lift, min(lift + CAUTION * error, expected))


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
