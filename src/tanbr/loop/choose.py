"""What the next slot serves: what an operator pinned, the start blend, or what the router says and admission allows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tanbr.errors import ConfigError, InputError
from tanbr.loop.config import LoopConfig
from tanbr.loop.slot import Choice, Phase, Reason, Version, worth
from tanbr.router.panel import Readings, chosen, proportional_blends, task_groups
from tanbr.router.simplex import Sizes, keep_largest
from tanbr.types import Blend, Decision, FloatArray, Router, TaskMix, as_blend

NEAR = 0.05  # two start blends whose weights differ by no more in all are not worth a merge
WINDOW = 100  # slots over which the share of explored ones is counted: an hour or two of one-minute slots


@dataclass(frozen=True, eq=False)
class Pin:
    """What an operator wants served."""

    blend: Blend  # (K,)
    version: int


class StartBlend:
    """The blend that needs no reward: even, each expert at its task's share of the mix, or given weights.

    What blends are known to earn, if anybody surveyed them, beats the first two.
    """

    def __init__(
        self,
        kind: Literal["even", "proportional"] | Sequence[float] | None,
        *,
        experts: int,
        own_experts: Sequence[int] = (),
        max_active: int | None = None,
        surveyed: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        """Choose the kind; `own_experts` (V,) is the expert of each task, empty where that is not known.

        Blends (N, K) and their rewards (N, V) that were `surveyed` count if no kind is named.
        """
        self._surveyed = surveyed if kind is None else None
        self._own = list(own_experts) if kind == "proportional" or (kind is None and own_experts) else []
        if kind == "proportional" and not own_experts:
            raise ConfigError(
                "a proportional blend needs a checkpoint that names its experts' tasks, and a --history that tells "
                "the tasks apart; choose even"
            )
        self._most = max_active or experts
        try:
            even = keep_largest(np.full((1, experts), 1.0 / experts), self._most)[0]
            fixed = even if kind is None or isinstance(kind, str) else kind
            self._fixed = as_blend(fixed, experts=experts, max_active=self._most)
        except InputError as error:
            raise ConfigError(f"serve.blend: {error}") from None

    def __call__(self, readings: Readings, served: FloatArray, *, models: int) -> tuple[FloatArray, FloatArray]:
        """Give up to G blends (n, K) for a mix as it is read, and what each task is taken to earn at each (n, V).

        Where nothing is known of tasks and experts, that is one blend. A blend that is `served` (m, K) already stands
        for one that is near enough to it.
        """
        tasks = len(readings.task_mix)
        blends, estimates = self._fixed[None].copy(), np.ones((1, tasks))
        if self._surveyed is not None:
            known, rewards = self._surveyed[0], np.nan_to_num(self._surveyed[1])
            rows = chosen(rewards, readings, models)
            blends, estimates = known[rows].copy(), rewards[rows]
        elif self._own:
            groups = min(models, tasks)
            labels = task_groups(readings, groups)
            sizes = Sizes(len(self._fixed), tasks, self._most)
            blends = proportional_blends(readings, labels, groups, own=self._own, sizes=sizes)
            estimates = (labels == np.arange(groups)[:, None]).astype(np.float64)
        for old in served:
            far = np.abs(blends - old).sum(axis=1)
            if far.min() <= NEAR:
                blends[far.argmin()] = old
        return blends, estimates


def phase_of(config: LoopConfig, *, pin: Pin | None, rewarded: int | None, number: int) -> Phase:
    """Say who chooses for slot `number`, where rewards came last for slot `rewarded`: without any, nobody explores."""
    if pin is not None:
        return Phase.PINNED
    if config.explore != "careful":
        return Phase.FIXED if config.explore == "never" else Phase.LEARNING
    fresh = rewarded is not None and number - rewarded <= config.patience
    return Phase.LEARNING if fresh else Phase.WAITING


def best_known(versions: Sequence[Version], mix: TaskMix, models: int, note: str) -> Choice | None:
    """Serve the versions that together have earned most for a mix (V,); None if a task of it was never rewarded."""
    if not versions or not np.isfinite(worth(versions, mix)):
        return None
    earned = np.array([np.nan_to_num(version.means) for version in versions])
    judged = [version for version in versions if np.isfinite(worth([version], mix))]
    if models == 1:
        if not judged:
            return None
        best = max(judged, key=lambda version: (worth([version], mix), version.number))
        return Choice.one(best.blend, len(mix), Reason.BEST, note, best.number)
    rows = sorted(set(chosen(earned, Readings.of(mix), min(models, len(versions))).tolist()))
    choice = Choice.panel(np.array([versions[row].blend for row in rows]), earned[rows], Reason.BEST, note)
    return replace(choice, versions=tuple(versions[row].number for row in rows))


def admitted(
    decision: Decision,
    *,
    kept: Choice,
    versions: Sequence[Version],
    explored: Sequence[bool],
    config: LoopConfig,
    models: int,
) -> tuple[Choice, bool]:
    """Let a decision pass, or say what to serve instead: whether it explores comes second.

    A choice without the decision means that the router's was declined: there was too little to gain, or too many of
    the last slots explored.
    """
    wanted = Choice.of(decision)
    now = [version for version in versions if version.number in kept.versions]
    if len(now) < len(kept.versions) or _same(wanted.blends, kept.blends):
        return wanted, False
    gain = float(decision.estimates.max(axis=0) @ decision.task_mix) - worth(now, decision.task_mix)
    if config.min_gain > 0 and gain < config.min_gain:
        return replace(kept, note=f"skipped: at most {gain:.3f} to gain"), False
    explores = any(_unknown(blend, versions, config.guard.least_count) for blend in wanted.blends)
    if explores and config.guard.exploration < 1 and sum(explored) + 1 > config.guard.exploration * (len(explored) + 1):
        note = "exploration budget spent: the best known blend"
        best = best_known(versions, decision.task_mix, models, note) if len(now) == 1 else None
        return best or replace(kept, reason=Reason.BEST, note=note), False
    return wanted, explores


def _same(blends: FloatArray, others: FloatArray) -> bool:
    return {blend.tobytes() for blend in blends} == {blend.tobytes() for blend in others}


def _unknown(blend: Blend, versions: Sequence[Version], least: float) -> bool:
    """Whether a blend (K,) has too few rewards to be known."""
    return sum(float(one.counts.sum()) for one in versions if np.array_equal(one.blend, blend)) < least


def ask(router: Router, mix: TaskMix, *, models: int, confusion: FloatArray | None) -> Decision:
    """Ask for a blend, or for as many as are served side by side."""
    return router.ask(mix) if models == 1 else router.ask(mix, models=models, confusion=confusion)
