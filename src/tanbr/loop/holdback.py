"""Hold-back: what learning is worth here. A random share of the slots serves the start blend, to compare with.

Before every slot that the router would choose for, a coin is tossed. It depends on a seed and the slot's number alone,
and its chance is written down: a slot that is held back stands for as many as the chance says. It is compared with the
slots around it, task by task, so that neither the mix nor a drift of the rewards is taken for a gain; the gain in all
is that of the tasks at the mean mix. Slots, not requests, are what was drawn: the interval comes from how slots differ,
and is never narrower than single requests alone would make it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tanbr.types import FloatArray, TaskMix

WINDOW = 1_000  # newest slots that count; a server that went back to the start blend tries again after as many
LEAST = 8  # slots held back before learning is judged: fewer differ too much by chance
SETTLED = 0.2  # part of the share that is still held back once learning is known to pay
NEAR = 10  # slots on each side that one held back is compared with
LEVEL = 0.95  # of an interval


def tossed(seed: int, slot: int, chance: float) -> bool:
    """Toss the coin of a slot: whether it is held back. A restart tosses the same."""
    return bool(np.random.default_rng((seed, slot)).random() < chance)


@dataclass(frozen=True, eq=False)
class Toss:
    """A slot that a coin was tossed for, and what it earned."""

    slot: int
    chance: float  # that it would be held back
    held: bool  # whether it was
    mix: TaskMix  # (V,)
    rewards: FloatArray  # (V,) NaN where unseen
    counts: FloatArray  # (V,)


@dataclass(frozen=True, eq=False)
class Gain:
    """What learning has earned beyond the start blend, a request; `error` is half of the interval."""

    since: int  # slot
    slots: int  # with rewards, of both kinds
    held: int  # of them, held back
    total: float
    error: float
    tasks: FloatArray  # (V,) NaN where a task was not seen in both kinds
    errors: FloatArray  # (V,)

    @property
    def harms(self) -> bool:
        """Whether the interval lies below 0, after enough slots."""
        return self.held >= LEAST and self.total + self.error < 0

    @property
    def pays(self) -> bool:
        """Whether it lies above 0."""
        return self.held >= LEAST and self.total - self.error > 0

    def __str__(self) -> str:
        return f"learning is worth {100 * self.total:+.1f} ± {100 * self.error:.1f} points since slot {self.since}"


def gain_of(tosses: Sequence[Toss]) -> Gain | None:
    """Compare each slot that was held back with those around it that were not; None before there are two of both."""
    tosses = sorted((one for one in tosses if one.counts.any()), key=lambda one: one.slot)
    held = np.array([one.held for one in tosses], dtype=np.bool_)
    if min(held.sum(), (~held).sum()) < 2:
        return None
    counts = np.array([one.counts for one in tosses])  # (n, V)
    sums = np.where(counts > 0, np.array([one.rewards for one in tosses]), 0.0) * counts
    near = np.array(
        [_near(held, at) for at in np.flatnonzero(held).tolist()]
    )  # (h, n) which slots each is compared with
    around, mine = near @ counts, counts[held]  # (h, V) requests
    both = (around > 0) & (mine > 0)
    chance = np.array([one.chance for one in tosses])[held]
    weights = np.where(both, mine, 0.0) / chance[:, None]  # (h, V) requests that a slot's stand for
    seen, behind = both.any(axis=0), np.maximum(weights.sum(axis=0), 1e-12)  # (V,)
    if not seen.any():
        return None
    apart = np.where(both, near @ sums / np.maximum(around, 1e-12) - sums[held] / np.maximum(mine, 1e-12), 0.0)
    tasks = (weights * apart).sum(axis=0) / behind  # (V,)
    share = np.where(seen, np.mean([one.mix for one in tosses], axis=0), 0.0)
    share = share / share.sum() if share.sum() > 0 else seen / seen.sum()
    level = (sums.sum(axis=0) + 0.5) / (counts.sum(axis=0) + 1.0)  # never quite 0 or 1
    single = np.where(both, 1.0 / np.maximum(mine, 1e-12) + 1.0 / np.maximum(around, 1e-12), 0.0)  # (h, V)
    within = (level * (1.0 - level)) * (weights**2 * single).sum(axis=0) / behind**2  # (V,)
    ways = np.concatenate([np.eye(len(share)), share[None]])  # (V + 1, V) each task, and all
    parts = (weights * (apart - tasks) / behind) @ ways.T  # (h, V + 1) what each slot adds to the error
    slots = (weights @ ways.T).sum(axis=0) ** 2 / np.maximum(((weights @ ways.T) ** 2).sum(axis=0), 1e-12)
    more = np.maximum(slots / np.maximum(slots - 1.0, 0.5), 1.0)
    variance = np.maximum((parts**2).sum(axis=0) * more, ways**2 @ within)
    errors = stdtrit(np.maximum(slots - 1.0, 1.0), 0.5 + LEVEL / 2) * np.sqrt(variance)
    return Gain(
        tosses[0].slot, len(tosses), int(held.sum()), float(share @ tasks), float(errors[-1]),
        np.where(seen, tasks, np.nan), np.where(seen, errors[:-1], np.nan),
    )  # fmt: skip


def _near(held: NDArray[np.bool_], at: int) -> FloatArray:
    """Mark the slots (n,) nearest to one, on both sides, that were not held back."""
    free = np.flatnonzero(~held)
    place = int(np.searchsorted(free, at))
    marked = np.zeros(len(held))
    marked[free[max(0, place - NEAR) : place + NEAR]] = 1.0
    return marked
