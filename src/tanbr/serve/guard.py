"""What keeps a bad blend from answering: probes before it is served, live rewards while it is."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from tanbr.errors import TanbrError
from tanbr.serve.config import GuardConfig
from tanbr.serve.engine import Engine, Live, Staged
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import Counts, FloatArray, Reward, TaskMix, Text

Scrutiny: TypeAlias = Literal["refuse", "measure", "sane"]
NEUTRAL: Text = "a"  # asked when there are no probes: even this must not be answered with NaN


class Refused(TanbrError):  # noqa: N818 - a verdict
    """A blend is not to be served; `reward` (V,) and `counts` (V,) are what the router is told instead."""

    def __init__(self, reason: str, reward: Reward, counts: Counts) -> None:
        super().__init__(reason)
        self.reward, self.counts = reward, counts


class Guard:
    """Compares a blend with the best of the last good ones, for the mix at hand."""

    def __init__(
        self,
        config: GuardConfig,
        engine: Engine,
        space: LabelSpace | None,
        probes: Sequence[Row],
        *,
        tasks: Sequence[str],
    ) -> None:
        self._config, self._engine, self._space, self._tasks = config, engine, space, tuple(tasks)
        count = round(config.probe_share * len(probes)) if space is not None else 0
        self._probes = [probes[i] for i in np.linspace(0, len(probes) - 1, count).astype(int)] if count else []
        self._of = np.array([self._tasks.index(row.task) for row in self._probes], dtype=np.intp)  # (n,)
        self._good: OrderedDict[int, FloatArray] = OrderedDict()  # version → rewards of the probes (n,)
        self._digest = hashlib.sha256(repr([(row.task, row.text) for row in self._probes]).encode()).hexdigest()[:16]
        self._known = np.zeros((2, len(tasks)))  # live rewards of good versions: sums and counts per task, fading
        self._now = np.zeros((3, len(tasks)))  # live rewards of what answers: sums, sums of squares, counts

    def remembered(self) -> str:
        """Give what it has seen of blends, as JSON: a restart must not make it forget what it refuses."""
        good = {str(version): rewards.tolist() for version, rewards in self._good.items()}
        return json.dumps(
            {"probes": self._digest, "good": good, "known": self._known.tolist(), "now": self._now.tolist()}
        )

    def remember(self, text: str | None) -> None:
        """Take in what `remembered` gave; of other probes or tasks only what fits, and nothing that makes no sense."""
        try:
            saved = json.loads(text or "{}")
            known, now = (np.array(saved[name], dtype=np.float64) for name in ("known", "now"))
            good = {int(version): np.array(rewards, dtype=np.float64) for version, rewards in saved["good"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return
        if known.shape == self._known.shape and now.shape == self._now.shape:
            self._known, self._now = known, now
        if saved.get("probes") == self._digest:
            self._good.update((v, rewards) for v, rewards in good.items() if rewards.shape == self._of.shape)

    # --- before a blend is served -----------------------------------------------------------------------------------

    def inspect(self, staged: Live | Staged, mix: TaskMix, *, scrutiny: Scrutiny = "refuse") -> None:
        """Probe what is about to answer; Refused if it gives NaN or falls below the best of the last good ones.

        With the scrutiny "measure" it is only compared with later, and with "sane" only looked through for NaN.
        """
        if self._space is None or not self._probes or scrutiny == "sane":
            if not self._engine.sane(NEUTRAL, staged):
                raise Refused("it answers with NaN", np.where(mix > 0, 0.0, np.nan), self._config.least_count * mix)
            return
        V = len(self._tasks)
        logits = self._engine.logits([row.text for row in self._probes], live=staged)
        sane = bool(np.isfinite(logits).all())
        rewards = np.zeros(len(self._probes))
        if sane:
            rewards = self._space.rewards(self._probes, self._space.answers(self._probes, logits))
        counts = np.bincount(self._of, minlength=V).astype(np.float64)
        means = np.bincount(self._of, weights=rewards, minlength=V) / np.maximum(counts, 1)
        told = np.where(counts > 0, means, np.nan)
        if not sane:
            raise Refused("it answers with NaN", told, counts)
        weights = (mix / np.maximum(counts, 1))[self._of]  # (n,)
        if self._good and weights.sum() > 0 and scrutiny == "refuse":
            weights /= weights.sum()
            best = max(self._good.values(), key=lambda known: float(weights @ known))
            lost = best - rewards
            fall = float(weights @ lost)
            error = float(np.sqrt((weights**2 * (lost - fall) ** 2).sum()))
            if fall - self._config.sigmas * error > self._config.margin:
                raise Refused(f"its probes earn {fall:.3f} less than those of the last good blend", told, counts)
        self._good[staged.version] = rewards

    # --- while it is ------------------------------------------------------------------------------------------------

    def opened(self, *, same: bool, bad: int | None, keep: int) -> None:
        """A slot starts: with the same blend, or with another, whose predecessor was good unless it is `bad`."""
        if bad is not None:
            self._good.pop(bad, None)
            self._now = np.zeros_like(self._now)
        elif not same:
            self._known = 0.9 * self._known + self._now[[0, 2]]
            self._now = np.zeros_like(self._now)
        while len(self._good) > keep:
            self._good.popitem(last=False)

    def see(self, share: FloatArray, reward: float) -> None:
        """Take in a live reward of what answers, shared out over the tasks (V,)."""
        self._now += share * np.array([[reward], [reward * reward], [1.0]])

    def judge(self) -> str | None:
        """Say why what answers should go, None if it should not: its rewards fell, task by task, beyond chance."""
        sums, squares, counts = self._now
        known, behind = self._known
        both = (counts > 0.5) & (behind >= self._config.least_count / 2)
        if counts[both].sum() < self._config.least_count:
            return None
        n, m = counts[both], behind[both]
        now, before = sums[both] / n, known[both] / m
        spread = np.maximum(squares[both] / n - now**2, 0.0) / n + before * (1 - before) / m
        fall = float((n * (before - now)).sum() / n.sum())
        error = float(np.sqrt((n**2 * spread).sum()) / n.sum())
        if fall - self._config.sigmas * error <= self._config.margin:
            return None
        return f"its rewards are {fall:.3f} ± {error:.3f} below those of the last good blends"
