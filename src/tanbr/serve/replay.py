"""Other routers over a recorded log: what they might have earned, and how much of that the log can vouch for.

A log holds the reward of the blends that were served, not of those that another router would have chosen. So a replay
asks a surrogate: a Gaussian process over blends, fitted on the log, one per task. What follows from it, and what not:

* A router's figure is as good as the surrogate where it went. `coverage` is the share of its slots whose blend lies
  near one that the log holds; a figure with little coverage is a guess, and is called one.
* `held_out` says how well the surrogate foretells slots it was not fitted on, next to foretelling their mean. If it is
  no better than the mean, the log tells no blend from another and no order of routers follows.
* The mixes, and what clients sent, are taken as given: an answer that changes what clients ask next is not replayed.
* The served router is scored by the same surrogate (`served`), so that like is compared with like.
"""

import sqlite3
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from tanbr.errors import DataError, InputError, StateError
from tanbr.serve.rows import vector
from tanbr.serve.store import FILE
from tanbr.types import Blend, FloatArray, Router, as_blend, as_counts, as_reward, as_task_mix

NEAR = 0.15  # Euclidean distance up to which a logged blend says something of another: a move of about 0.1 of weight
_MODELS = (
    "SELECT slots.mix, models.blend, models.reward, models.counts FROM models JOIN slots USING (slot) "
    "WHERE models.reward IS NOT NULL ORDER BY slot, place"
)
MOST_BLENDS = 300  # distinct blends that the surrogate is fitted on, those with most requests: a fit is cubic in them
LEAST_SLOTS = 10  # slots with rewards that a log must hold; with fewer nothing can be held out
NOISE = 0.25  # variance of one request's reward, the most that a value in [0, 1] can have


@dataclass(frozen=True, eq=False)
class Log:
    """Slots that were served and rewarded, in order."""

    mixes: FloatArray  # (T, V) ψ, as the router saw it
    blends: FloatArray  # (T, K) x, as served
    rewards: FloatArray  # (T, V) r, NaN where unseen
    counts: FloatArray  # (T, V)

    def __len__(self) -> int:
        """T."""
        return len(self.mixes)

    @property
    def totals(self) -> FloatArray:
        """Mean reward of each slot's requests (T,)."""
        return np.asarray(np.nansum(self.rewards * self.counts, axis=1) / self.counts.sum(axis=1))

    def part(self, slots: slice) -> "Log":
        """Some of the slots."""
        return Log(self.mixes[slots], self.blends[slots], self.rewards[slots], self.counts[slots])


@dataclass(frozen=True)
class Replayed:
    """What a router might have earned."""

    router: str
    reward: float  # mean reward of a slot, by the surrogate
    deviation: float  # of that mean: how unsure the surrogate is of it
    coverage: float  # share of slots whose blend is near a logged one
    supported: bool  # whether the log vouches for most of it


@dataclass(frozen=True)
class Replay:
    """Routers compared on one log."""

    slots: int
    blends: int  # distinct
    logged_reward: float  # mean reward of a slot, as recorded
    held_out: float  # mean absolute error of the surrogate on the last fifth of the slots, fitted on the others
    held_out_by_mean: float  # the same for foretelling each slot by the mean of the others
    routers: tuple[Replayed, ...]  # the served one first


def read_log(path: str | Path) -> Log:
    """Read the rewarded slots of a server's state folder, or of the file in it; a running server is not disturbed.

    Each model of a panel counts as a slot of its own.
    """
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    try:
        if not file.is_file():  # SQLite waits for ever at a pipe
            raise sqlite3.OperationalError("there is no such file")
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = [tuple(vector(text) for text in row) for row in connection.execute(_MODELS)]
        for mix, blend, reward, counts in rows:
            as_task_mix(mix, tasks=rows[0][0].size)
            as_blend(blend, experts=rows[0][1].size)
            as_counts(counts, reward=as_reward(reward, tasks=mix.size))
    except sqlite3.Error as error:
        raise DataError(f"{path} holds no log of a server of this version ({error}); give its state folder") from None
    except (InputError, StateError) as error:
        raise DataError(f"{path} holds a damaged slot ({error}); restore it from a copy") from None
    rows = [row for row in rows if row[3].sum() > 0]
    if len(rows) < LEAST_SLOTS:
        raise DataError(f"{path} holds {len(rows)} slots with rewards; a replay needs at least {LEAST_SLOTS}")
    return Log(*(np.array(column) for column in zip(*rows, strict=True)))


class Surrogate:
    """The reward of any blend, as a log suggests it."""

    def __init__(self, log: Log) -> None:
        blends, group_of = np.unique(log.blends, axis=0, return_inverse=True)
        sums, counts = np.zeros((2, len(blends), log.counts.shape[1]))
        np.add.at(sums, group_of.ravel(), np.nan_to_num(log.rewards) * log.counts)
        np.add.at(counts, group_of.ravel(), log.counts)
        kept = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:MOST_BLENDS])
        self.blends, sums, counts = blends[kept], sums[kept], counts[kept]
        self._known: dict[bytes, tuple[FloatArray, FloatArray]] = {}  # blend → what is predicted of it
        self._tasks: list[tuple[float, GaussianProcessRegressor | None]] = []
        for v in range(counts.shape[1]):
            seen = counts[:, v] > 0
            mean = float(sums[:, v].sum() / counts[:, v].sum()) if seen.any() else 0.5
            self._tasks.append((mean, self._fitted(seen, sums[:, v], counts[:, v], mean) if seen.sum() > 1 else None))

    def _fitted(
        self, seen: NDArray[np.bool_], sums: FloatArray, counts: FloatArray, mean: float
    ) -> GaussianProcessRegressor:
        # bounds: a log of blends that are all alike must not make the surrogate sure of those that are not
        kernel = ConstantKernel(0.05, (0.02, 0.25)) * Matern(0.5, (0.1, 1.0), nu=2.5)
        process = GaussianProcessRegressor(kernel, alpha=NOISE / counts[seen] + 1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a width at its bound is an answer, too
            return process.fit(self.blends[seen], sums[seen] / counts[seen] - mean)

    def __call__(self, blend: Blend) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of a blend's reward per task (V,), (V,)."""
        key = blend.tobytes()
        if key not in self._known:
            self._known[key] = self._predicted(blend)
        return self._known[key]

    def _predicted(self, blend: Blend) -> tuple[FloatArray, FloatArray]:
        means, deviations = [], []
        for mean, process in self._tasks:
            if process is None:
                means.append(mean)
                deviations.append(0.5)
            else:
                above, deviation = process.predict(blend[None], return_std=True)
                means.append(mean + float(above[0]))
                deviations.append(float(deviation[0]))
        return np.clip(means, 0.0, 1.0), np.array(deviations)

    def distance(self, blend: Blend) -> float:
        """How far the nearest logged blend is."""
        return float(np.sqrt(((self.blends - blend) ** 2).sum(axis=1)).min())


def replay(log: Log, routers: Mapping[str, Router], *, seed: int = 0) -> Replay:
    """Run fresh routers over the log's mixes, rewarded by the surrogate with the noise that the log's counts have."""
    surrogate = Surrogate(log)
    results = [_judged("served", log, list(log.blends), surrogate)]
    for name, router in routers.items():
        rng, chosen = np.random.default_rng(seed), []
        for mix, counts in zip(log.mixes, log.counts, strict=True):
            decision = router.ask(mix)
            chosen.append(decision.blend)
            mean, _ = surrogate(decision.blend)
            spread = np.sqrt(mean * (1 - mean) / np.maximum(counts, 1.0))
            reward = np.clip(mean + rng.normal(size=len(mean)) * spread, 0.0, 1.0)
            router.tell(decision, np.where(counts > 0, reward, np.nan), counts)
        results.append(_judged(name, log, chosen, surrogate))
    error, by_mean = _held_out(log)
    return Replay(
        slots=len(log),
        blends=len(np.unique(log.blends, axis=0)),
        logged_reward=float(log.totals.mean()),
        held_out=error,
        held_out_by_mean=by_mean,
        routers=tuple(results),
    )


def _judged(name: str, log: Log, blends: list[Blend], surrogate: Surrogate) -> Replayed:
    weights = log.counts / log.counts.sum(axis=1, keepdims=True)
    values = [surrogate(blend) for blend in blends]
    rewards = np.array([w @ mean for w, (mean, _) in zip(weights, values, strict=True)])
    # errors of one blend are the same in every slot: the mean's deviation is bounded by the mean deviation
    deviation = float(np.mean([np.sqrt(w**2 @ d**2) for w, (_, d) in zip(weights, values, strict=True)]))
    coverage = float(np.mean([surrogate.distance(blend) <= NEAR for blend in blends]))
    return Replayed(name, float(rewards.mean()), deviation, coverage, supported=coverage > 0.5)


def _held_out(log: Log) -> tuple[float, float]:
    cut = len(log) - max(1, len(log) // 5)
    past, coming = log.part(slice(0, cut)), log.part(slice(cut, None))
    surrogate = Surrogate(past)
    weights = coming.counts / coming.counts.sum(axis=1, keepdims=True)
    told = np.array([w @ surrogate(blend)[0] for w, blend in zip(weights, coming.blends, strict=True)])
    return float(np.abs(told - coming.totals).mean()), float(np.abs(past.totals.mean() - coming.totals).mean())
