"""Groups of experts that earn alike on every task, from the rewards of blends: of a survey, or of a server's log.

What an expert adds is read off by ridge regression of the rewards on the blends' weights. For a survey, whose first
blends are the experts alone, that is nearly what each earned by itself.
"""

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import InputError
from tanbr.grouping.cluster import Grouping, check_into, clustered
from tanbr.types import FloatArray, as_blend, as_reward

RIDGE = 1e-3  # of a blend's weight, squared and counted


def by_reward(
    blends: ArrayLike, rewards: ArrayLike, counts: ArrayLike | None = None, *, into: int, model_sha256: str = ""
) -> Grouping:
    """Cluster the experts by the rewards (n, V), NaN where unseen, of blends (n, K) with counts (n, V) behind them.

    The similarity of two experts is 1 minus the root mean square difference of what they earn.
    """
    earned = effects(blends, rewards, counts)
    check_into(into, len(earned))
    squared = ((earned[:, None] - earned[None]) ** 2).sum(axis=2)
    groups = clustered(squared, into=into, found_by="reward", model_sha256=model_sha256)
    return Grouping(groups, 1.0 - np.sqrt(squared / earned.shape[1]))


def effects(blends: ArrayLike, rewards: ArrayLike, counts: ArrayLike | None = None) -> FloatArray:
    """What every expert earns on every task, by a linear fit: (K, V)."""
    x, r = np.array(blends, dtype=np.float64), np.array(rewards, dtype=np.float64)
    weight = np.where(np.isnan(r), 0.0, 1.0) if counts is None else np.nan_to_num(np.array(counts, dtype=np.float64))
    if x.ndim != 2 or r.ndim != 2 or len(x) != len(r) or weight.shape != r.shape or not len(x):
        raise InputError(f"blends, rewards and counts must be tables of equal length (got {x.shape} and {r.shape})")
    for row in x:
        as_blend(row, experts=x.shape[1])
    for row in r:
        as_reward(row, tasks=r.shape[1])
    weight = np.where(np.isnan(r), 0.0, weight)
    behind = (x[:, :, None] * weight[:, None]).sum(axis=0)  # (K, V) requests that speak for each expert
    if (behind <= 0).any():
        expert, task = (int(place) for place in np.argwhere(behind <= 0)[0])
        raise InputError(
            f"every expert must be in a rewarded blend for every task (got none with expert {expert} for task {task}); "
            "survey every expert alone, or group by weights"
        )
    earned = np.empty((x.shape[1], r.shape[1]))
    for v in range(r.shape[1]):
        w, centre = weight[:, v], float(np.average(np.nan_to_num(r[:, v]), weights=weight[:, v]))
        inner = (x * w[:, None]).T @ x + RIDGE * w.mean() * np.eye(x.shape[1])
        earned[:, v] = centre + np.linalg.solve(inner, (x * w[:, None]).T @ np.nan_to_num(r[:, v] - centre))
    return earned
