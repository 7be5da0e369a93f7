"""The open slot: a bounded sample of its requests, and how much of it belongs to each task.

Counting the most likely task of each request is biased whenever the classifier errs. Saerens, Latinne and
Decaestecker (2002) instead find the mix under which the calibrated posteriors are most likely. The curvature of
that likelihood says how sure the answer is: confusable tasks come out less certain than distinct ones.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.types import FloatArray, TaskMix

SAMPLE = 4096  # distinct requests of a slot that are kept: of a larger slot a sample, so that memory is bounded
EM_ROUNDS, EM_TOLERANCE = 200, 1e-5  # EM stops when a round moves the mix by less than this (L1)
UNKNOWN_QUANTILE = 0.01  # share of each task's own history that may count as unlike any task
ALARM_SHARE, ALARM_SIGMAS = 0.05, 3.0  # an unknown share above this calls for an alarm if chance does not explain it


@dataclass(frozen=True, eq=False)
class SlotSample:
    """Posteriors of at most SAMPLE distinct requests, those with the smallest hashes, and how often each came."""

    keys: NDArray[np.uint64]  # (m,) sorted and distinct
    rows: FloatArray  # (m, V + 2) posterior, novelty, 1; all times how often the request came
    requests: int = 0
    waiting: int = 0  # rows at the end that `compacted` has not yet joined with the others

    @staticmethod
    def empty(tasks: int) -> "SlotSample":
        """No requests."""
        return SlotSample(np.zeros(0, dtype=np.uint64), np.zeros((0, tasks + 2)))

    def add(self, keys: NDArray[np.uint64], posteriors: FloatArray, novel: NDArray[np.bool_]) -> "SlotSample":
        """Take in requests: hashes (n,), posteriors (n, V), whether each is unlike any task (n,)."""
        rows = np.column_stack([posteriors, novel, np.ones(len(keys))])
        joined = np.concatenate([self.keys, keys]), np.concatenate([self.rows, rows])
        grown = SlotSample(*joined, self.requests + len(keys), self.waiting + len(keys))
        return grown.compacted() if grown.waiting > SAMPLE else grown

    def compacted(self) -> "SlotSample":
        """Join equal requests and drop those beyond SAMPLE."""
        if not self.waiting:
            return self
        order = np.argsort(self.keys, kind="stable")
        distinct, firsts = np.unique(self.keys[order], return_index=True)
        joined = np.add.reduceat(self.rows[order], firsts)
        return SlotSample(distinct[:SAMPLE], joined[:SAMPLE], self.requests)

    def read(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Posteriors (m, V) of the distinct requests, novelty in [0, 1] (m,), and counts (m,)."""
        rows = self.compacted().rows
        counts = rows[:, -1]
        return rows[:, :-2] / counts[:, None], rows[:, -2] / counts, counts


@dataclass(frozen=True, eq=False)
class Prevalence:
    """The mix of one slot."""

    mix: TaskMix  # (V,)
    deviation: FloatArray  # (V,) standard deviation of the mix


def prevalence(posteriors: FloatArray, counts: FloatArray) -> Prevalence:
    """Estimate the mix of requests from posteriors (n, V) under a uniform prior and how often each came (n,)."""
    posteriors = np.maximum(posteriors, 1e-12)  # so that no request is impossible under a mix
    tasks, weight = posteriors.shape[1], float(counts.sum())
    mix = np.full(tasks, 1.0 / tasks)
    for _ in range(EM_ROUNDS):
        # E: each request is shared out by prior times likelihood. M: the shares add up to the new prior.
        shares = counts / (posteriors @ mix)
        new = mix * (shares @ posteriors) / weight
        moved = float(np.abs(new - mix).sum())
        mix = new
        if moved < EM_TOLERANCE:
            break
    mix = mix / mix.sum()
    return Prevalence(mix, _deviation(posteriors, counts, mix))


def _deviation(posteriors: FloatArray, counts: FloatArray, mix: TaskMix) -> FloatArray:
    """Give the standard deviation of the mix (V,): the inverse Fisher information on the simplex's tangent space."""
    tasks, weight = len(mix), counts.sum()
    smoothed = (mix * weight + 0.5) / (weight + 0.5 * tasks)  # a share of 0 in n requests is known to about 1/n
    ratios = posteriors / (posteriors @ smoothed)[:, None]
    information = (ratios * counts[:, None]).T @ ratios
    information[np.diag_indices(tasks)] += 0.5 / smoothed
    basis = np.linalg.svd(np.ones((1, tasks)))[2][1:]  # (V - 1, V), orthonormal, each row sums to 0
    covariance = basis.T @ np.linalg.inv(basis @ information @ basis.T) @ basis
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))


def unknown_share(novelty: FloatArray, counts: FloatArray) -> tuple[float, bool]:
    """Estimate which share of the requests is unlike any task, beyond chance, and whether that calls for an alarm."""
    requests = float(counts.sum())
    if requests == 0:
        return 0.0, False
    expected = UNKNOWN_QUANTILE  # so many of the tasks' own requests look novel too
    rate = float(novelty @ counts) / requests
    if rate - expected < ALARM_SIGMAS * np.sqrt(expected * (1 - expected) / requests):
        return 0.0, False
    share = (rate - expected) / (1 - expected)
    spread = np.sqrt(rate * (1 - rate) / requests)
    return share, bool(share - ALARM_SIGMAS * spread > ALARM_SHARE)


def familiar_counts(novelty: FloatArray, counts: FloatArray, unknown: float) -> FloatArray:
    """Count each request (n,) by the chance that it belongs to a task: the novel ones by how many of them do not."""
    novel = float(novelty @ counts)
    strange = min(unknown * float(counts.sum()) / novel, 1.0) if novel > 0 else 0.0
    return counts * (1 - strange * novelty)
