"""What keeps a bad blend from answering: probes before it is served, live rewards while it is."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

import numpy as np

from tanbr.errors import TanbrError
from tanbr.serve.clients import Clients, capped
from tanbr.serve.config import GuardConfig
from tanbr.serve.engine import Engine
from tanbr.serve.panel import Live, Staged
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import Counts, FloatArray, Reward, TaskMix, Text

Scrutiny: TypeAlias = Literal["refuse", "measure", "sane"]
HEARD = 256  # clients whose live rewards of a version are kept apart: the state stays small, further ones do not count
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
        client_share: float,
    ) -> None:
        self._client_share = client_share
        self._config, self._engine, self._space, self._tasks = config, engine, space, tuple(tasks)
        count = round(config.probe_share * len(probes)) if space is not None else 0
        self._probes = [probes[i] for i in np.linspace(0, len(probes) - 1, count).astype(int)] if count else []
        self._of = np.array([self._tasks.index(row.task) for row in self._probes], dtype=np.intp)  # (n,)
        self._good: OrderedDict[int, FloatArray] = OrderedDict()  # version → rewards of the probes (n,)
        self._digest = hashlib.sha256(repr([(row.task, row.text) for row in self._probes]).encode()).hexdigest()[:16]
        self._known = np.zeros((2, len(tasks)))  # live rewards of good versions: sums and counts per task, fading
        self._now: dict[int, dict[str, FloatArray]] = {}  # live rewards of each version that answers, by client: `see`

    def remembered(self) -> str:
        """Give what it has seen of blends, as JSON: a restart must not make it forget what it refuses."""
        good = {str(version): rewards.tolist() for version, rewards in self._good.items()}
        now = {str(one): {client: rewards.tolist() for client, rewards in by.items()} for one, by in self._now.items()}
        return json.dumps({"probes": self._digest, "good": good, "known": self._known.tolist(), "now": now})

    def remember(self, text: str | None, *, version: int) -> None:
        """Take in what `remembered` gave; of other probes or tasks only what fits, and nothing that makes no sense.

        `version` is the first of those that answer: what was seen before there were several is of it. What was seen
        before clients were told apart is nobody's in particular.
        """
        try:
            saved = json.loads(text or "{}")
            known, of = np.array(saved["known"], dtype=np.float64), saved["now"]
            of = {version: of} if isinstance(of, list) else of
            now = {
                int(number): {
                    client: np.array(rewards, dtype=np.float64)
                    for client, rewards in (by if isinstance(by, dict) else {"": by}).items()
                }
                for number, by in of.items()
            }
            good = {int(version): np.array(rewards, dtype=np.float64) for version, rewards in saved["good"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return
        shapes = {rewards.shape for by in now.values() for rewards in by.values()}
        if known.shape == self._known.shape and shapes <= {(3, len(self._tasks))}:
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

    def opened(self, versions: Collection[int], *, bad: Collection[int] = (), keep: int) -> None:
        """A slot starts with these versions; those that answered before and do no more were good, unless `bad`."""
        for version in bad:
            self._good.pop(version, None)
        gone = [self._counted(by) for version, by in self._now.items() if version not in (*versions, *bad)]
        if gone:
            self._known = 0.9 * self._known + np.sum(gone, axis=0)[[0, 2]]
        self._now = {version: by for version, by in self._now.items() if version in {*versions} - {*bad}}
        while len(self._good) > keep:
            self._good.popitem(last=False)

    def see(self, version: int, share: FloatArray, reward: float, client: str = "") -> None:
        """Take in a live reward of a version that answers, shared out over the tasks (V,), and who gave it.

        Kept are sums, sums of squares, and counts (3, V).
        """
        seen = self._now.setdefault(version, {})
        if client in seen or len(seen) < HEARD:
            seen[client] = seen.get(client, 0.0) + share * np.array([[reward], [reward * reward], [1.0]])

    def _counted(self, seen: dict[str, FloatArray]) -> FloatArray:
        """Add up clients' live rewards (3, V), none beyond its share."""
        rewards = np.array(list(seen.values())).reshape(-1, 3, len(self._tasks))
        counts = capped(list(seen), rewards[:, 2].sum(axis=1), self._client_share)
        return np.asarray((counts[:, None, None] * rewards).sum(axis=0))

    def reward(self, version: int) -> float:
        """Mean live reward of a version that answers; NaN if there was none."""
        sums, _, counts = self._counted(self._now.get(version, {}))
        return float(sums.sum() / counts.sum()) if counts.sum() > 0 else float("nan")

    def judge(self, clients: Clients) -> tuple[int, str] | None:
        """Name a version that should answer no more, and say why; None if all may.

        The verdict must stand without any one client, unless that client leads: nobody rolls a version back alone.
        """
        for version, seen in self._now.items():
            why = self._judged(self._counted(seen))
            if why is not None and all(
                self._judged(self._counted({name: seen[name] for name in seen if name != client}))
                for client in seen
                if client and not clients.leads(client)
            ):
                return version, why
        return None

    def _judged(self, rewards: FloatArray) -> str | None:
        """Say why a version with these live rewards (3, V) should go: they fell, task by task, beyond chance."""
        sums, squares, counts = rewards
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
