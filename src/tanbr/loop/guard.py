"""What keeps a bad blend from answering: probes before it is served, live rewards while it is."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import TanbrError
from tanbr.loop.rewards import Trust, capped
from tanbr.types import Counts, FloatArray, Reward, TaskMix

LEAST_COUNT = 20  # live rewards below which no version is judged, and what a worthless one is told with
SIGMAS = 2.0  # standard errors beyond the margin that make a fall more than chance
HEARD = 256  # clients whose live rewards of a version are kept apart: the state stays small, further ones do not count


class Refused(TanbrError):  # noqa: N818 - a verdict
    """A blend is not to be served; `reward` (V,) and `counts` (V,) are what the router is told instead."""

    def __init__(self, reason: str, reward: Reward, counts: Counts) -> None:
        super().__init__(reason)
        self.reward, self.counts = reward, counts


@dataclass(frozen=True, eq=False)
class Probes:
    """What a blend earned on the probe texts (n,), and the task of each; no rewards: it answered with NaN."""

    rewards: FloatArray | None  # (n,)
    tasks: NDArray[np.intp]  # (n,)
    digest: str = ""  # names the texts


@dataclass(frozen=True, eq=False)
class Guard:
    """Compares a blend with the best of the last good ones, for the mix at hand."""

    known: FloatArray  # (2, V) live rewards of good versions: sums and counts per task, fading
    good: Mapping[int, FloatArray] = field(default_factory=dict)  # version → rewards of the probes (n,)
    digest: str = ""  # of these probes
    live: Mapping[int, Mapping[str, FloatArray]] = field(default_factory=dict)
    # version that answers → client → sums, sums of squares and counts of its rewards (3, V)

    @staticmethod
    def empty(tasks: int) -> "Guard":
        """Nothing was served yet."""
        return Guard(np.zeros((2, tasks)))

    def probed(self, version: int, probes: Probes, mix: TaskMix, *, margin: float) -> "Guard":
        """Remember a blend's probes; Refused if it answers with NaN, or is below the best good one by the margin."""
        rewards, of, tasks = probes.rewards, probes.tasks, len(mix)
        if rewards is None:
            raise Refused("it answers with NaN", np.where(mix > 0, 0.0, np.nan), LEAST_COUNT * mix)
        if not len(of):
            return self
        counts = np.bincount(of, minlength=tasks).astype(np.float64)
        good = self.good if self.digest == probes.digest else {}
        weights = (mix / np.maximum(counts, 1))[of]  # (n,)
        if good and weights.sum() > 0:
            weights /= weights.sum()
            best = max(good.values(), key=lambda earned: float(weights @ earned))
            lost = best - rewards
            fall = float(weights @ lost)
            error = float(np.sqrt((weights**2 * (lost - fall) ** 2).sum()))
            if fall - SIGMAS * error > margin:
                means = np.bincount(of, weights=rewards, minlength=tasks) / np.maximum(counts, 1)
                told = np.where(counts > 0, means, np.nan)
                raise Refused(f"its probes earn {fall:.3f} less than those of the last good blend", told, counts)
        return replace(self, good={**good, version: rewards}, digest=probes.digest)

    def seen(self, version: int, share: FloatArray, reward: float, client: str = "") -> "Guard":
        """Take in a live reward of a version that answers, shared out over the tasks (V,), and who gave it."""
        of = self.live.get(version, {})
        if client not in of and len(of) >= HEARD:
            return self
        more = of.get(client, 0.0) + share * np.array([[reward], [reward * reward], [1.0]])
        return replace(self, live={**self.live, version: {**of, client: more}})

    def opened(self, versions: Collection[int], *, bad: Collection[int], keep: int) -> "Guard":
        """A slot starts with these versions; those that answered before and do no more were good, unless `bad`."""
        good = dict([item for item in self.good.items() if item[0] not in bad][-keep:])
        gone = [_total(of) for version, of in self.live.items() if version not in (*versions, *bad)]
        known = 0.9 * self.known + np.sum(gone, axis=0)[[0, 2]] if gone else self.known
        live = {version: of for version, of in self.live.items() if version in versions and version not in bad}
        return replace(self, good=good, known=known, live=live)

    def reward(self, version: int) -> float:
        """Mean live reward of a version that answers; NaN if there was none."""
        of = self.live.get(version)
        if not of:
            return float("nan")
        sums, _, counts = _total(of)
        return float(sums.sum() / counts.sum()) if counts.any() else float("nan")

    def judged(self, trust: Trust, *, margin: float) -> tuple[int, str] | None:
        """Name a version that should answer no more, and why: a verdict that no client alone decides, but a leader."""
        for version, of in self.live.items():
            why = self._fell(of, margin)
            if why is not None and all(
                self._fell({name: of[name] for name in of if name != client}, margin)
                for client in of
                if client and not trust.leads(client)
            ):
                return version, why
        return None

    def _fell(self, of: Mapping[str, FloatArray], margin: float) -> str | None:
        """Say why a version with these live rewards should go: they fell, task by task, beyond chance."""
        if not of:
            return None
        sums, squares, counts = _total(of)
        known, behind = self.known
        both = (counts > 0.5) & (behind >= LEAST_COUNT / 2)
        if counts[both].sum() < LEAST_COUNT:
            return None
        n, m = counts[both], behind[both]
        now, before = sums[both] / n, known[both] / m
        spread = np.maximum(squares[both] / n - now**2, 0.0) / n + before * (1 - before) / m
        fall = float((n * (before - now)).sum() / n.sum())
        error = float(np.sqrt((n**2 * spread).sum()) / n.sum())
        if fall - SIGMAS * error <= margin:
            return None
        return f"its rewards are {fall:.3f} ± {error:.3f} below those of the last good blends"

    def to_json(self) -> str:
        """Write it down: a restart must not make it forget what it refuses."""
        good = {str(version): earned.tolist() for version, earned in self.good.items()}
        live = {str(version): {name: of[name].tolist() for name in of} for version, of in self.live.items()}
        return json.dumps({"probes": self.digest, "good": good, "known": self.known.tolist(), "live": live})

    @staticmethod
    def from_json(text: str | None, *, tasks: int) -> "Guard":
        """Read what `to_json` wrote; what makes no sense for these tasks is a fresh start."""

        def table(values: Any, rows: int) -> FloatArray:
            return np.array(values, dtype=np.float64).reshape(rows, tasks)

        try:
            saved = json.loads(text or "{}")
            good = {int(version): np.array(earned, dtype=np.float64) for version, earned in saved["good"].items()}
            live = {int(version): {name: table(of[name], 3) for name in of} for version, of in saved["live"].items()}
            return Guard(table(saved["known"], 2), good, str(saved["probes"]), live)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return Guard.empty(tasks)


def _total(of: Mapping[str, FloatArray]) -> FloatArray:
    """Add up clients' live rewards (3, V), none beyond its share."""
    rewards = np.array(list(of.values()))
    counts = capped(list(of), rewards[:, 2].sum(axis=1))
    return np.asarray((counts[:, None, None] * rewards).sum(axis=0))
