"""The default router: it chooses by upper confidence bounds, learns at a cost that does not grow, and finds changes.

`learn` pools a slot's rewards, forgets what they contradict (`watch.py`), and fits kernel and noise at set slots
(`gp.py`).
"""

# ruff: noqa: ARG002 - a policy is handed random numbers; this one draws only at the start

from dataclasses import dataclass, replace

import numpy as np

from tanbr.router import gp
from tanbr.router.choose import Panel, baseline_panel, wanted
from tanbr.router.known import Known, Rules
from tanbr.router.panel import Readings
from tanbr.router.shell import Question
from tanbr.router.simplex import first_best
from tanbr.router.watch import Watch
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward

FITS = (80, 160, 320, 640, 1280)  # told slots after which the kernel is fitted: earlier, a fit calls the map flat
LEAST_ERROR = 0.005  # of a gain in practice: half a point, what rows of other days differ by
PRACTICE_FITS = (32, 64, 128, 256, 512, 1024)  # blends practised after which the kernel is fitted


@dataclass(frozen=True, eq=False)
class DefaultPolicy(Rules):
    """The default policy: steps over a `Known`."""

    panels = True

    def choose(self, state: Known, asked: Question, rng: np.random.Generator) -> Decision:
        """Choose what the bound says."""
        waiting = [blend for decision in asked.open for blend in decision.blends]
        panel = wanted(self.by(state), state, Readings.of(asked.task_mix, asked.confusion), asked.models, waiting)
        watch, suspect = state.watch, first_best(state.watch.evidence)
        evidence, changes = float(watch.evidence[suspect]), int(watch.changes.sum())
        suspect = suspect if evidence > 0 else -1
        terms = tuple(replace(one, evidence=evidence, suspect=suspect, changes=changes) for one in panel.terms)
        return asked.decided(panel.blends, terms, estimates=panel.estimates)

    def learn(
        self, state: Known, decision: Decision, rewards: FloatArray, counts: FloatArray, rng: np.random.Generator
    ) -> Known:
        """Pool the rewards of all models, one slot in all."""
        for blend, reward, count in zip(decision.blends, rewards, counts, strict=True):
            if count.any():
                state = self._observed(state, blend, reward, count)
        return self._counted(state)

    def warm_start(self, state: Known, blend: Blend, reward: Reward, counts: Counts) -> Known:
        """Pool a reward from elsewhere."""
        return self._counted(self._observed(state, blend, reward, counts))

    def practised(self, state: Known, blend: Blend, gain: FloatArray, errors: FloatArray) -> Known:
        """Take in gains (V,) over the even blend, NaN where unseen, and their standard errors (V,).

        From the first one on rewards are what a blend earns beyond the even one: all else is forgotten.
        """
        pool, prior, K, V = state.posterior, self.by(state).prior, self.sizes.experts, self.sizes.tasks
        if not state.practised:
            pool = gp.forget_tasks(prior, pool, np.arange(V))
            sure = np.full(V, pool.noise / LEAST_ERROR**2)
            pool = gp.observe(prior, pool, np.full(K, 1.0 / K), np.full(V, gp.CENTRE), sure)
        counts = np.where(np.isfinite(gain), pool.noise / np.maximum(errors, LEAST_ERROR) ** 2, 0.0)
        pool = gp.observe(prior, pool, blend, np.clip(gp.CENTRE + gain, 0.0, 1.0), counts)
        if state.practised + 1 in PRACTICE_FITS:
            pool = gp.refit(prior, pool, noise=False)
        return replace(state, posterior=pool, practised=state.practised + 1)

    def assigned(self, state: Known, own: FloatArray) -> Known:
        """Expect from now on that experts are the tasks' own as likely as this says (V, K)."""
        state = replace(state, own=own)
        return replace(state, posterior=gp.with_lift(self.by(state).prior, state.posterior))

    def suggested(self, state: Known, readings: Readings, models: int, optimism: float | None) -> Panel:
        """Find G blends of highest bound at so many deviations, those of what is served if 0; the baseline if None."""
        rules = self.by(state)
        if optimism is None:
            blends, home = baseline_panel(rules, readings, models)
            return Panel(blends, (home == np.arange(models)[:, None]).astype(np.float64), ())
        return wanted(replace(rules, optimism=optimism or rules.optimism), state, readings, models, ())

    def _observed(self, state: Known, blend: Blend, reward: Reward, counts: Counts) -> Known:
        """Pool a reward, after what it contradicts was forgotten."""
        if state.practised:  # the log holds these requests, each paired with the even blend
            return state
        if self.config.change > 0 and state.slots >= min(FITS, default=np.inf):
            pool = state.posterior
            mean, variance = gp.predicted(self.prior, pool, blend, counts)
            watch, changed = state.watch.weighed(
                reward - mean, variance, shift=pool.variance, slot=state.slots, threshold=self.config.change
            )
            state = replace(state, watch=watch)
            if len(changed) and watch.together(state.slots):  # start over, but for the noise
                pool = replace(gp.start(self.prior, pool.points), noise=pool.noise)
                watch = replace(Watch.start(self.sizes.tasks), changes=watch.changes)
                state = replace(state, posterior=pool, watch=watch, told=0.0, slots=0)
            elif len(changed):
                left = 1.0 - len(changed) / self.sizes.tasks
                pool = gp.forget_tasks(self.prior, pool, changed)
                state = replace(state, posterior=pool, told=state.told * left)
        return replace(state, posterior=gp.observe(self.prior, state.posterior, blend, reward, counts))

    def _counted(self, state: Known) -> Known:
        """Count a slot, and fit where that is due."""
        state = replace(state, told=state.told + 1.0, slots=state.slots + 1)
        if state.practised:  # its rewards are surer than their counts say: no fit would know the noise
            return state
        if state.slots in FITS:
            posterior = gp.refit(self.prior, state.posterior)
            return replace(state, posterior=posterior, watch=state.watch.begun())
        return state

    def expected(self, state: Known) -> FloatArray:
        """The means of the even blend and of those that were told: (n, V)."""
        pool, even = state.posterior, self.sizes.experts
        return gp.at(self.by(state).prior, pool, np.concatenate([pool.points[even : even + 1], pool.arms]))[0]
