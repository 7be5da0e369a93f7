"""What learning was worth, from the slots that a state remembers: three estimates by the chances written down.

`by_tasks` is what `loop/holdback.py` says. Where the other two, which take no account of drift, lie far from it,
rewards have drifted, or too few slots were held back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from tanbr.errors import StateError
from tanbr.loop.holdback import LEVEL, Gain, Toss, gain_of
from tanbr.serve.journal import read_tosses
from tanbr.serve.lineage import read_made_for
from tanbr.serve.store import peek
from tanbr.types import FloatArray


@dataclass(frozen=True)
class Replayed:
    """What learning was worth, in reward a request, by each estimate: the gain, and half of its interval."""

    tasks: tuple[str, ...]
    by_tasks: Gain
    self_normalised: tuple[float, float]
    doubly_robust: tuple[float, float]


def replay(state: Path) -> Replayed:
    """Read a state's slots, beside its server or without one."""
    with peek(state) as store:
        made, tosses = read_made_for(store), read_tosses(store.slots())
    found = gain_of(tosses)
    if made is None or found is None:
        held = sum(toss.held for toss in tosses)
        raise StateError(
            f"{state} cannot say what learning is worth: two slots held back and two others need rewards (it has "
            f"{held} and {len(tosses) - held}); serve on, with --hold-back above 0"
        )
    return Replayed(made.tasks, found, self_normalised(tosses), doubly_robust(tosses))


def self_normalised(tosses: Sequence[Toss]) -> tuple[float, float]:
    """Compare the means Σ R/p ÷ Σ 1/p of both kinds, R the reward of a slot at its mix, p the chance of its kind."""
    held, weights, rewards = _slots(tosses)
    gain, variance = 0.0, 0.0
    for kind, sign in ((~held, 1.0), (held, -1.0)):
        share = weights[kind] / weights[kind].sum()
        mean = float(share @ rewards[kind])
        gain, variance = gain + sign * mean, variance + float((share**2) @ (rewards[kind] - mean) ** 2)
    return gain, _deviations(weights[held]) * float(np.sqrt(variance))


def doubly_robust(tosses: Sequence[Toss]) -> tuple[float, float]:
    """Predict each slot by its mix and the tasks' means of both kinds, and add what the slots seen had beyond that."""
    held, weights, rewards = _slots(tosses)
    tosses = [one for one in tosses if one.counts.any()]
    counts, mixes = np.array([one.counts for one in tosses]), np.array([one.mix for one in tosses])
    sums = np.where(counts > 0, np.array([one.rewards for one in tosses]), 0.0) * counts
    each, total = np.zeros(len(tosses)), sums.sum() / counts.sum()
    for kind, sign in ((~held, 1.0), (held, -1.0)):
        means = (sums[kind].sum(axis=0) + total) / (counts[kind].sum(axis=0) + 1.0)  # (V,) of unseen tasks the mean
        predicted = mixes @ means
        each += sign * (predicted + np.where(kind, weights * (rewards - predicted), 0.0))
    return float(each.mean()), _deviations(weights[held]) * float(each.std(ddof=1) / np.sqrt(len(each)))


def _deviations(weights: FloatArray) -> float:
    """Half of an interval in standard errors, where so few slots (n,), of these weights, were held back."""
    alike = float(weights.sum() ** 2 / (weights**2).sum())
    return float(student.ppf(0.5 + LEVEL / 2, max(alike - 1.0, 1.0)))


def _slots(tosses: Sequence[Toss]) -> tuple[NDArray[np.bool_], FloatArray, FloatArray]:
    """Whether each slot with rewards was held back (n,), 1/p (n,), and its reward at its mix (n,)."""
    seen = [one for one in tosses if one.counts.any()]
    shares = [np.where(one.counts > 0, np.maximum(one.mix, 1e-6), 0.0) for one in seen]
    rewards = [float(share @ np.nan_to_num(one.rewards) / share.sum()) for share, one in zip(shares, seen, strict=True)]
    chances = [one.chance if one.held else 1.0 - one.chance for one in seen]
    return np.array([one.held for one in seen], dtype=np.bool_), 1.0 / np.array(chances), np.array(rewards)
