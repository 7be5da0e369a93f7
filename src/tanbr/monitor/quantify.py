"""How much of a slot belongs to each task: prevalence by expectation-maximisation, not by counting votes.

Counting the most likely task of each request is biased whenever the classifier errs. Saerens, Latinne and
Decaestecker (2002) instead find the mix under which the calibrated posteriors are most likely. The curvature of
that likelihood says how sure the answer is: confusable tasks come out less certain than distinct ones.
"""

from dataclasses import dataclass

import numpy as np

from tanbr.types import FloatArray, TaskMix


@dataclass(frozen=True, eq=False)
class Prevalence:
    """The mix of one slot."""

    mix: TaskMix  # (V,)
    deviation: FloatArray  # (V,) standard deviation of the mix
    weight: float  # requests behind it


def prevalence(
    posteriors: FloatArray,  # (n, V) under a uniform prior
    counts: FloatArray,  # (n,) how often each row occurred
    tagged: FloatArray,  # (V,) requests whose task is known
    *,
    rounds: int,
    tolerance: float,
) -> Prevalence:
    """Estimate the mix of requests, some of them tagged. There must be at least one."""
    weight = float(counts.sum() + tagged.sum())
    tasks = posteriors.shape[1]
    mix = np.full(tasks, 1.0 / tasks)
    shares = counts / weight
    known = tagged / weight
    for _ in range(rounds):
        mass = posteriors @ mix
        new = mix * ((shares / mass) @ posteriors) + known
        moved = float(np.abs(new - mix).sum())
        mix = new
        if moved < tolerance:
            break
    mix = mix / mix.sum()
    return Prevalence(mix, _deviation(posteriors, counts, tagged, mix), weight)


def _deviation(posteriors: FloatArray, counts: FloatArray, tagged: FloatArray, mix: TaskMix) -> FloatArray:
    """Give the standard deviation of the mix (V,): the inverse Fisher information on the simplex's tangent space.

    One pseudo-request per task keeps it finite: a share of 0 out of n requests is known to about 1/n, not exactly.
    """
    tasks = len(mix)
    ratios = posteriors / (posteriors @ mix)[:, None]
    information = (ratios * counts[:, None]).T @ ratios
    floor = 1.0 / (counts.sum() + tagged.sum() + tasks)
    smoothed = (mix + floor) / (mix + floor).sum()
    information[np.diag_indices(tasks)] += tagged / smoothed**2 + 1.0 / smoothed
    basis = np.linalg.svd(np.ones((1, tasks)))[2][1:]  # (V - 1, V), orthonormal, each row sums to 0
    covariance = basis.T @ np.linalg.inv(basis @ information @ basis.T) @ basis
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))
