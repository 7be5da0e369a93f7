"""The default router: it chooses by upper confidence bounds, learns at a cost that does not grow, and finds changes.

`learn` pools a slot's rewards, enters the slot in the ledger, fits kernel and noise at set slots, and grows the tree
where the bound is high.

**Whether a task's rewards are still those that were learned.** Before a task's reward r is learned, the posterior
predicts it with mean m and variance s², the noise included. Against that stands a change: the same mean, but a variance
of s² + c², where c² is the variance of rewards between blends. With q = c²/(s² + c²) and z = (r − m)/s the logarithm
of the Bayes factor of the two is

    ℓ = ½·log(1 − q) + ½·q·z²

and Page's sum E = max(0, E + min(ℓ, h/3)) is the evidence for a change since it was last 0. While nothing changes, the
mean of exp(ℓ) is 1, so that on average at least eʰ rewards of a task pass until E exceeds h (Lorden 1971); no three
rewards, however odd, are enough. That holds as far as the posterior's variances do. So the watch begins with the first
fit of kernel and noise, anew with every other, and a task whose rewards differ more from what is predicted than the
fit allows is held to its own mean z² (of what it showed since, each at most `OUTLIER`, and `FIRST` times 1).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.router import gp
from tanbr.router.choose import wanted
from tanbr.router.conservative import account, careful, entered, settled
from tanbr.router.known import Known, Rules, Watch
from tanbr.router.panel import Readings, group_mixes
from tanbr.router.shell import Question
from tanbr.router.simplex import first_best
from tanbr.router.tree import DEEPEST, SNAP
from tanbr.types import Account, Blend, Counts, Decision, FloatArray, Reward, TaskMix, TreeView

EARLY_FITS = (20, 40)  # told slots after which noise, correlation and lift are corrected; the kernel waits
FITS = (80, 160, 320, 640, 1280)  # told slots after which the kernel, too, is fitted: earlier, a fit calls the map flat
EXPAND_BELOW = 0.5  # share of the prior's variance below which a node is expanded: about one reward of its blend
RECENT = 8  # task mixes for which a leaf must have fallen behind before its row is used again
OUTLIER = 9.0  # z² above which a reward no longer says anything about a task's usual noise: three deviations
TOGETHER = 50  # slots within which changes of several tasks are taken to be one of the model
FIRST = 20.0  # rewards that the fit's word is worth: as many as make a mean z² sure to a third


@dataclass(frozen=True, eq=False)
class GpTree(Rules):
    """The default policy: steps over a `Known`."""

    panels = True

    def choose(self, state: Known, asked: Question, rng: np.random.Generator) -> Decision:  # noqa: ARG002
        """Choose what the bound says; with a baseline, what the balance pays for."""
        readings = Readings.of(asked.task_mix, asked.confusion)
        if self.careful:
            panel = careful(self, state, readings, asked.models, asked.open)
        else:
            waiting = [blend for decision in asked.open for blend in decision.blends]
            panel = wanted(self, state, readings, asked.models, waiting)
        task = first_best(state.watch.evidence)
        evidence, changes = float(state.watch.evidence[task]), int(state.watch.changes.sum())
        suspect = task if evidence > 0 else -1
        terms = (
            replace(
                one,
                depth=int(state.tree.depth[one.node]) if one.node >= 0 else 0,
                evidence=evidence,
                suspect=suspect,
                changes=changes,
            )
            for one in panel.terms
        )
        return asked.decided(panel.blends, tuple(terms), estimates=panel.estimates)

    def learn(
        self,
        state: Known,
        decision: Decision,
        rewards: FloatArray,
        counts: FloatArray,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Known:
        """Pool the rewards of all models, one slot in all, and grow the tree for each model's own mix."""
        taught, mixes = [], group_mixes(decision.estimates, Readings.of(decision.task_mix, decision.confusion))
        for blend, mix, reward, count in zip(decision.blends, mixes, rewards, counts, strict=True):
            if count.any():
                state, much = self._observed(state, blend, reward, count)
                taught.append(much)
                state = _remembered(state, mix)
        state = self._counted(state, float(np.mean(taught)))
        if self.careful:
            state = entered(self, state, decision)
        for mix in mixes if self.config.room else ():
            state = self._grown(state, mix)
        return state

    def warm_start(self, state: Known, blend: Blend, reward: Reward, counts: Counts) -> Known:
        """Pool a reward from elsewhere."""
        return self._counted(*self._observed(state, blend, reward, counts))

    def _observed(self, state: Known, blend: Blend, reward: Reward, counts: Counts) -> tuple[Known, float]:
        """Pool a reward, after what it contradicts was forgotten; how much it taught."""
        if self.config.change > 0 and state.fitted:
            mean, variance = gp.predicted(self.prior, state.posterior, blend, counts)
            shift, seen, threshold = state.posterior.variance, counts > 0, self.config.change
            watch, changed = seen_by(
                state.watch, reward - mean, variance, shift=shift, seen=seen, slot=state.slots, threshold=threshold
            )
            state = replace(state, watch=watch)
            if len(changed):
                state = self._unlearned(state, changed)
        posterior, taught = gp.observe(self.prior, state.posterior, blend, reward, counts)
        return replace(state, posterior=posterior), taught

    def _unlearned(self, state: Known, changed: NDArray[np.intp]) -> Known:
        """Forget the rewards of changed tasks; where several changed together, start over with all of them."""
        tasks = self.sizes.tasks
        state = settled(self, state)
        posterior = state.posterior
        if together(state.watch, state.slots):
            changed = np.arange(tasks)
            posterior = gp.start_over(self.prior, posterior)
            state = replace(state, watch=begun(state.watch), since=0, fitted=0)
        left = 1.0 - len(changed) / tasks
        posterior = gp.forget_tasks(self.prior, posterior, changed)
        return replace(state, posterior=posterior, told=state.told * left, learned=state.learned * left)

    def _counted(self, state: Known, taught: float) -> Known:
        """Count a slot, and fit where that is due."""
        state = replace(
            state, told=state.told + 1.0, learned=state.learned + taught, slots=state.slots + 1, since=state.since + 1
        )
        if state.since in FITS:
            posterior = gp.refit(self.prior, state.posterior)
            return replace(state, posterior=posterior, watch=begun(state.watch), fitted=state.slots)
        if state.since in EARLY_FITS:
            return replace(state, posterior=gp.refit_early(self.prior, state.posterior))
        return state

    def _grown(self, state: Known, mix: TaskMix) -> Known:
        """Expand the leaf of highest bound, or else of highest mean, once its variance is low enough."""
        pool, tree, nodes = state.posterior, state.tree, self.nodes(state)
        ripe = tree.leaf & (tree.depth <= DEEPEST)
        mean = np.where(ripe, pool.mean[nodes] @ mix, -np.inf)
        variance = pool.variance_of(mix, pool.gain[nodes])
        settled_below = EXPAND_BELOW * float(pool.variance_of(mix, np.zeros((1, 1)))[0])
        for node in (first_best(mean + self.beta(state) * np.sqrt(variance)), first_best(mean)):
            if ripe[node] and variance[node] < settled_below:
                order = np.argsort(-(pool.mean[: self.sizes.experts] @ mix), kind="stable")  # best single expert first
                children = tree.offspring(node, order, self.sizes)
                tree = tree.without(self._leaves_behind(state, len(children) - tree.free, keep=node))
                if len(children) > tree.free:
                    return replace(state, tree=tree)
                tree, rows = tree.added(node, children)
                posterior = gp.with_points(self.prior, pool, nodes.start + rows, children)
                return replace(state, tree=tree, posterior=posterior)
        return state

    def _leaves_behind(self, state: Known, count: int, *, keep: int) -> NDArray[np.intp]:
        """Find the leaves farthest below the best leaf for every recent mix."""
        pool, leaves = state.posterior, np.flatnonzero(state.tree.leaf)
        leaves = leaves[(leaves != keep) & (leaves != 0)]
        rows = self.nodes(state).start + leaves
        mean, gain, merit = pool.mean[rows], pool.gain[rows], np.full(len(rows), -np.inf)
        for mix in state.mixes if count > 0 else ():
            bound = mean @ mix + self.beta(state) * np.sqrt(pool.variance_of(mix, gain))
            merit = np.maximum(merit, bound - bound.max(initial=-np.inf))
        return np.asarray(leaves[np.argsort(merit, kind="stable")[: max(count, 0)]])

    def account(self, state: Known) -> Account | None:
        """What exploration has cost and may cost; None without a baseline."""
        return account(self, state)

    def view(self, state: Known) -> TreeView:
        """Show the vertex tree, renumbered so that parents come first; all of it is feasible."""
        tree, pool = state.tree, state.posterior
        order: NDArray[np.intp] = np.flatnonzero(tree.used)
        order = order[np.argsort(tree.depth[order], kind="stable")]
        place = np.full(len(tree.used) + 1, -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        arms = [pool.nearest(tree.blend[node]) for node in order]
        return TreeView(
            parent=place[tree.parent[order]],
            depth=tree.depth[order],
            blend=tree.blend[order],
            visits=np.array([pool.visits[arm] if away < SNAP else 0.0 for arm, away in arms]),
            value=pool.mean[self.nodes(state)][order],
            leaf=tree.children[order] == 0,
            active=np.ones(len(order), dtype=np.bool_),
            node=order.astype(np.int64),
        )


def _remembered(state: Known, mix: TaskMix) -> Known:
    if any(np.array_equal(mix, known) for known in state.mixes):
        return state
    return replace(state, mixes=np.concatenate([state.mixes, mix[None]])[-RECENT:])


def seen_by(
    watch: Watch, error: FloatArray, variance: FloatArray, *, shift: float, seen: NDArray[np.bool_], slot: int,
    threshold: float,
) -> tuple[Watch, NDArray[np.intp]]:  # fmt: skip
    """Weigh the errors r − m (V,) of one slot against their variances s² (V,), c² being `shift`: changed tasks."""
    usual = np.maximum((FIRST + watch.squares) / (FIRST + watch.seen), 1.0)  # (V,)
    share = shift / (variance + shift)
    squared = np.where(seen, error**2 / variance, 0.0)
    factor = 0.5 * (np.log1p(-share) + share * squared / usual)
    summed = np.maximum(watch.evidence + np.minimum(factor, threshold / 3.0), 0.0)
    evidence = np.where(seen, summed, watch.evidence)
    changed = evidence > threshold
    after = Watch(
        evidence=np.where(changed, 0.0, evidence),
        squares=np.where(changed, 0.0, watch.squares + np.minimum(squared, OUTLIER)),
        seen=np.where(changed, 0.0, watch.seen + seen),
        changes=watch.changes + changed,
        last=np.where(changed, slot, watch.last),
    )
    return after, np.flatnonzero(changed)


def together(watch: Watch, slot: int) -> bool:
    """Whether a quarter of the tasks, two at least, changed within `TOGETHER` slots: then the model has."""
    tasks = len(watch.last)
    return int(((watch.last >= 0) & (watch.last > slot - TOGETHER)).sum()) >= max(tasks / 4, min(tasks, 2))


def begun(watch: Watch) -> Watch:
    """Let the evidence start from nothing, after what the variances rest on was fitted."""
    none = np.zeros(len(watch.evidence))
    return replace(watch, evidence=none, squares=none, seen=none)
