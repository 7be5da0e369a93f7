"""What keeps a bad blend from answering: probes before it is served, live rewards while it is."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import TanbrError
from tanbr.loop.config import GuardConfig
from tanbr.loop.rewards import Trust, capped
from tanbr.types import Counts, FloatArray, Reward, TaskMix

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

    tasks: int
    good: Mapping[int, FloatArray] = field(default_factory=dict)  # version → rewards of the probes (n,)
    digest: str = ""  # of these probes
    known: FloatArray | None = None  # (2, V) live rewards of good versions: sums and counts per task, fading
    live: Mapping[int, Mapping[str, FloatArray]] = field(default_factory=dict)
    # version that answers → client → sums, sums of squares and counts of its rewards (3, V)

    # --- before a blend is served -----------------------------------------------------------------------------------

    def probed(self, version: int, probes: Probes, mix: TaskMix, config: GuardConfig, *, refuse: bool) -> "Guard":
        """Remember a blend's probes; Refused if it answers with NaN or falls below the best of the last good ones.

        Without `refuse` it is only remembered, to compare others with.
        """
        of = probes.tasks
        if not len(of):
            if probes.rewards is None:
                raise Refused("it answers with NaN", np.where(mix > 0, 0.0, np.nan), config.least_count * mix)
            return self
        counts = np.bincount(of, minlength=self.tasks).astype(np.float64)
        rewards = np.zeros(len(of)) if probes.rewards is None else probes.rewards
        means = np.bincount(of, weights=rewards, minlength=self.tasks) / np.maximum(counts, 1)
        told = np.where(counts > 0, means, np.nan)
        if probes.rewards is None:
            raise Refused("it answers with NaN", told, counts)
        good = self.good if self.digest == probes.digest else {}
        weights = (mix / np.maximum(counts, 1))[of]  # (n,)
        if good and weights.sum() > 0 and refuse:
            weights /= weights.sum()
            best = max(good.values(), key=lambda earned: float(weights @ earned))
            lost = best - rewards
            fall = float(weights @ lost)
            error = float(np.sqrt((weights**2 * (lost - fall) ** 2).sum()))
            if fall - config.sigmas * error > config.margin:
                raise Refused(f"its probes earn {fall:.3f} less than those of the last good blend", told, counts)
        return replace(self, good={**good, version: rewards}, digest=probes.digest)

    # --- while it is ------------------------------------------------------------------------------------------------

    def seen(self, version: int, share: FloatArray, reward: float, client: str = "") -> "Guard":
        """Take in a live reward of a version that answers, shared out over the tasks (V,), and who gave it."""
        of = self.live.get(version, {})
        if client not in of and len(of) >= HEARD:
            return self
        more = of.get(client, 0.0) + share * np.array([[reward], [reward * reward], [1.0]])
        return replace(self, live={**self.live, version: {**of, client: more}})

    def opened(self, versions: Collection[int], *, bad: Collection[int], keep: int, share: float) -> "Guard":
        """A slot starts with these versions; those that answered before and do no more were good, unless `bad`."""
        good = dict([(version, earned) for version, earned in self.good.items() if version not in bad][-keep:])
        gone = [_total(of, share) for version, of in self.live.items() if version not in (*versions, *bad)]
        known = np.zeros((2, self.tasks)) if self.known is None else self.known
        if gone:
            known = 0.9 * known + np.sum(gone, axis=0)[[0, 2]]
        live = {version: of for version, of in self.live.items() if version in versions and version not in bad}
        return replace(self, good=good, known=known, live=live)

    def reward(self, version: int, *, share: float) -> float:
        """Mean live reward of a version that answers; NaN if there was none."""
        of = self.live.get(version)
        if not of:
            return float("nan")
        sums, _, counts = _total(of, share)
        return float(sums.sum() / counts.sum()) if counts.sum() > 0 else float("nan")

    def judged(self, trust: Trust, config: GuardConfig) -> tuple[int, str] | None:
        """Name a version that should answer no more, and say why; None if all may.

        The verdict must stand without any one client, unless that client leads: nobody rolls a version back alone.
        """
        for version, of in self.live.items():
            why = self._fell(of, trust.share, config)
            if why is not None and all(
                self._fell({name: of[name] for name in of if name != client}, trust.share, config)
                for client in of
                if client and not trust.leads(client)
            ):
                return version, why
        return None

    def _fell(self, of: Mapping[str, FloatArray], share: float, config: GuardConfig) -> str | None:
        """Say why a version with these live rewards should go: they fell, task by task, beyond chance."""
        if self.known is None or not of:
            return None
        sums, squares, counts = _total(of, share)
        known, behind = self.known
        both = (counts > 0.5) & (behind >= config.least_count / 2)
        if counts[both].sum() < config.least_count:
            return None
        n, m = counts[both], behind[both]
        now, before = sums[both] / n, known[both] / m
        spread = np.maximum(squares[both] / n - now**2, 0.0) / n + before * (1 - before) / m
        fall = float((n * (before - now)).sum() / n.sum())
        error = float(np.sqrt((n**2 * spread).sum()) / n.sum())
        if fall - config.sigmas * error <= config.margin:
            return None
        return f"its rewards are {fall:.3f} ± {error:.3f} below those of the last good blends"

    # --- over a restart ---------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Write it down: a restart must not make it forget what it refuses."""
        good = {str(version): earned.tolist() for version, earned in self.good.items()}
        live = {str(version): {name: of[name].tolist() for name in of} for version, of in self.live.items()}
        known = None if self.known is None else self.known.tolist()
        return json.dumps({"probes": self.digest, "good": good, "known": known, "live": live})

    @classmethod
    def from_json(cls, text: str | None, *, tasks: int) -> "Guard":
        """Read what `to_json` wrote; what makes no sense for these tasks is a fresh start."""
        fresh = cls(tasks)
        try:
            saved = json.loads(text or "{}")
            known = None if saved["known"] is None else np.array(saved["known"], dtype=np.float64)
            live = {int(one): {name: _table(of[name], tasks) for name in of} for one, of in saved["live"].items()}
            good = {int(version): np.array(earned, dtype=np.float64) for version, earned in saved["good"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return fresh
        if known is not None and known.shape != (2, tasks):
            return fresh
        return cls(tasks, good, str(saved.get("probes", "")), known, live)


def _table(values: Sequence[Sequence[float]], tasks: int) -> FloatArray:
    table = np.array(values, dtype=np.float64)
    if table.shape != (3, tasks):
        raise ValueError(f"live rewards must be of shape {(3, tasks)}")
    return table


def _total(of: Mapping[str, FloatArray], share: float) -> FloatArray:
    """Add up clients' live rewards (3, V), none beyond its share."""
    rewards = np.array(list(of.values()))
    counts = capped(list(of), rewards[:, 2].sum(axis=1), share)
    return np.asarray((counts[:, None, None] * rewards).sum(axis=0))
