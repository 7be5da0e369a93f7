"""How much of a slot belongs to each task: prevalence by expectation-maximisation, not by counting votes.

Counting the most likely task of each request is biased whenever the classifier errs. Saerens, Latinne and
Decaestecker (2002) instead find the mix under which the calibrated posteriors are most likely. The curvature of
that likelihood says how sure the answer is: confusable tasks come out less certain than distinct ones.
"""

from dataclasses import dataclass

import numpy as np

from tanbr.monitor.config import MonitorConfig
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
    config: MonitorConfig,
) -> Prevalence:
    """Estimate the mix of requests, some of them tagged. There must be at least one."""
    posteriors = np.maximum(posteriors, 1e-12)  # so that no request is impossible under a mix
    weight = float(counts.sum() + tagged.sum())
    mix = np.full(len(tagged), 1.0 / len(tagged))
    for _ in range(config.em_rounds):
        # E: each request is shared out by prior times likelihood. M: the shares add up to the new prior.
        shares = counts / (posteriors @ mix)
        new = (mix * (shares @ posteriors) + tagged) / weight
        moved = float(np.abs(new - mix).sum())
        mix = new
        if moved < config.em_tolerance:
            break
    mix = mix / mix.sum()
    return Prevalence(mix, _deviation(posteriors, counts, tagged, mix), weight)


def _deviation(posteriors: FloatArray, counts: FloatArray, tagged: FloatArray, mix: TaskMix) -> FloatArray:
    """Give the standard deviation of the mix (V,): the inverse Fisher information on the simplex's tangent space.

    Half a request more of each task keeps it finite: a share of 0 in n requests is known to about 1/n, not exactly.
    """
    tasks = len(mix)
    weight = counts.sum() + tagged.sum()
    smoothed = (mix * weight + 0.5) / (weight + 0.5 * tasks)
    ratios = posteriors / (posteriors @ smoothed)[:, None]
    information = (ratios * counts[:, None]).T @ ratios
    information[np.diag_indices(tasks)] += tagged / smoothed**2 + 0.5 / smoothed
    basis = np.linalg.svd(np.ones((1, tasks)))[2][1:]  # (V - 1, V), orthonormal, each row sums to 0
    covariance = basis.T @ np.linalg.inv(basis @ information @ basis.T) @ basis
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))


def unknown_share(novelty: FloatArray, counts: FloatArray, config: MonitorConfig) -> tuple[float, bool]:
    """Estimate which share of the untagged requests is unlike any task, and whether that calls for an alarm.

    `unknown_quantile` of the tasks' own requests look novel too: so many are taken off, and a rate that chance
    would explain is no unknown share at all.
    """
    untagged = float(counts.sum())
    if untagged == 0:
        return 0.0, False
    expected = config.unknown_quantile
    rate = float(novelty @ counts) / untagged
    if rate - expected < config.alarm_sigmas * np.sqrt(expected * (1 - expected) / untagged):
        return 0.0, False
    share = (rate - expected) / (1 - expected)
    spread = np.sqrt(rate * (1 - rate) / untagged)
    return share, bool(share - config.alarm_sigmas * spread > config.alarm_share)


def familiar_counts(novelty: FloatArray, counts: FloatArray, unknown: float) -> FloatArray:
    """Count each request (n,) by the chance that it belongs to a task: the novel ones by how many of them do not."""
    novel = float(novelty @ counts)
    strange = min(unknown * float(counts.sum()) / novel, 1.0) if novel > 0 else 0.0
    return counts * (1 - strange * novelty)
