"""The default router: upper confidence bounds of a pooled Gaussian process over fixed blends, a tree and climbers.

`ask` only compares candidates whose posterior `tell` has kept up to date. The candidates are rows of one table:
fixed blends, then the nodes of the vertex tree, then climbers, which are the best candidates of the last told mix
moved up the bound by a few gradient steps.
"""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.router.argmax import first_best
from tanbr.router.careful_panel import careful_panel, entries
from tanbr.router.change import Watch, WatchState
from tanbr.router.config import DefaultModeConfig
from tanbr.router.conservative import account, baseline_of, choose_carefully
from tanbr.router.gp_panel import choose_panel
from tanbr.router.kernel import correlation
from tanbr.router.ledger import Ledger, LedgerState
from tanbr.router.panel import Candidates, Panel, group_mixes
from tanbr.router.posterior import PooledPosterior, PosteriorState
from tanbr.router.readings import Readings
from tanbr.router.records import Open, Terms, TreeView, blends_of
from tanbr.router.simplex import keep_largest
from tanbr.router.sizes import Sizes
from tanbr.router.vertex_tree import TreeState, VertexTree
from tanbr.types import Account, Blend, Counts, FloatArray, Reward, TaskMix

MOST_OPEN = 16  # open decisions an ask looks at


def fixed_blends(sizes: Sizes, count: int, rng: np.random.Generator) -> FloatArray:
    """Vertices, the even blend, pair midpoints, random blends of two, three or all experts: (about count, K)."""
    experts = sizes.experts
    vertices = np.eye(experts)
    pairs = rng.permutation(np.array(np.triu_indices(experts, 1)).T)[: count // 4]
    parts = [vertices, np.full((1, experts), 1.0 / experts), 0.5 * (vertices[pairs[:, 0]] + vertices[pairs[:, 1]])]
    random = np.zeros((max(count - sum(map(len, parts)), 0), experts))
    for row, blend in enumerate(random):
        active = experts if row % 4 == 3 else min(2 + row % 2, experts)
        blend[rng.choice(experts, size=active, replace=False)] = rng.dirichlet(np.ones(active))
    return keep_largest(np.concatenate([*parts, random]), sizes.max_active)


@dataclass(frozen=True, eq=False)
class GpTreeState:
    """Everything that changes in a `GpTree`."""

    slots: int  # rewards told
    asked: int  # blends of decisions that were told, and of warm starts
    told: float  # slots, as far as they are remembered
    learned: float  # the same, each by the share of the deviation that was left at its blend
    since: int  # slots told since the router started, or started over
    fitted: int  # slots told at the last fit
    mixes: FloatArray  # (recent, V) the task mixes told last
    posterior: PosteriorState
    tree: TreeState
    ledger: LedgerState
    watch: WatchState


class GpTree:
    """Chooses by upper confidence bound, learns at a cost that does not grow, refines its tree where it pays."""

    def __init__(self, sizes: Sizes, *, config: DefaultModeConfig, rng: np.random.Generator) -> None:
        self.config, self.sizes = config, sizes
        fixed = fixed_blends(sizes, config.pool, rng)
        self.tree = VertexTree(sizes, room=config.room, most_children=config.children, least=config.snap)
        self.nodes = slice(len(fixed), len(fixed) + config.room)  # the tree's rows among the candidates
        self.climbers = self.nodes.stop + np.arange(config.climbers * config.climbs)
        even = np.repeat(fixed[sizes.experts][None], config.room + len(self.climbers), axis=0)
        self.posterior = PooledPosterior(np.concatenate([fixed, even]), tasks=sizes.tasks, config=config)
        self.opening = min(sizes.experts + 1, config.opening)  # first asks: the even blend, then single experts
        self.ledger = Ledger(sizes.experts, sizes.tasks)  # of a router with a baseline
        self.watch = Watch(sizes.tasks, threshold=config.change)
        self.asked = 0  # blends of decisions that were told, and of warm starts
        self.told = 0.0  # slots, as far as they are remembered
        self.learned = 0.0  # the same, each by the share of the deviation that was left at its blend
        self.slots = self.since = self.fitted = 0
        self.mixes: deque[TaskMix] = deque(maxlen=config.recent_mixes)

    @property
    def beta(self) -> float:
        """Standard deviations in the bound: fewer as slots are told, but no faster than there was to learn."""
        config = self.config
        halvings = min(self.told / config.beta_half, self.learned / config.learned_half)
        return float(config.beta_floor + (config.beta - config.beta_floor) * 0.5**halvings)

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:
        """Take the candidate of highest bound; one near a known arm is played as that arm."""
        if self.config.baseline != "none":
            blend, terms = choose_carefully(self, mix, open_slots)
            return blend, self._watched(terms)
        pool, beta = self.posterior, self.beta
        variance = pool.variance_of(mix, pool.gain)
        for blend in blends_of(open_slots)[-MOST_OPEN:]:
            variance *= self._left_by(blend, mix, variance)
        mean, deviation = pool.mean @ mix, np.sqrt(variance)
        bound = mean + beta * deviation
        bound[self.nodes][~self.tree.used] = -np.inf
        best = first_best(bound)
        asked = self.asked + len(blends_of(open_slots))
        if asked < self.opening:
            best = self.sizes.experts if asked == 0 else asked - 1
        blend, node = pool.points[best], best - self.nodes.start
        inside = 0 <= node < self.config.room
        terms = Terms(
            mean=float(mean[best]),
            uncertainty=beta * float(deviation[best]),
            node=node if inside else -1,
            depth=int(self.tree.depth[node]) if inside else 0,
            candidates=len(bound) - self.tree.free,
        )
        return self.snapped(blend), self._watched(terms)

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:
        """Choose G blends jointly among all candidates and the groups' proportional blends."""
        panel = choose_panel(self, readings, models, blends_of(open_slots))
        panel = replace(panel, blends=np.array([self.snapped(blend) for blend in panel.blends]))
        if self.config.baseline != "none":
            panel = careful_panel(self, readings, panel, open_slots)
        return replace(panel, terms=tuple(self._watched(terms) for terms in panel.terms))

    def _watched(self, terms: Terms) -> Terms:
        """Say what speaks for a change of some task's rewards."""
        watch, task = self.watch, first_best(self.watch.evidence)
        evidence = float(watch.evidence[task])
        return replace(terms, evidence=evidence, suspect=task if evidence > 0 else -1, changes=int(watch.changes.sum()))

    def bounded(self, blends: FloatArray, mix: TaskMix) -> Candidates:
        """Make candidates of any blends (n, K)."""
        mean, gain = self.posterior.at(blends)
        return Candidates.of(blends, mean, self._widths(gain, mix))

    def candidates(self, mix: TaskMix, open_blends: list[Blend]) -> Candidates:
        """All blends whose posterior is kept, less sure of themselves where a reward is still to come."""
        pool, rows = self.posterior, self.usable()
        node = rows - self.nodes.start
        inside = (node >= 0) & (node < self.config.room)
        depth = np.zeros(len(rows), dtype=np.int64)
        depth[inside] = self.tree.depth[node[inside]]
        variance = pool.variance_of(mix, pool.gain)
        left = np.ones(len(variance))
        for blend in open_blends[-MOST_OPEN:]:
            left *= self._left_by(blend, mix, variance * left)
        width = self._widths(pool.gain[rows], mix) * np.sqrt(left[rows])[:, None]
        return Candidates(
            pool.points[rows], pool.mean[rows], width, np.zeros(len(rows)), np.where(inside, node, -1), depth
        )

    def usable(self) -> NDArray[np.intp]:
        """Rows of the candidates: all but the tree's free room."""
        usable = np.ones(len(self.posterior.points), dtype=np.bool_)
        usable[self.nodes] = self.tree.used
        return np.flatnonzero(usable)

    def _widths(self, gain: FloatArray, mix: TaskMix) -> FloatArray:
        """Share β deviations of ψᵀr out to the tasks by their own deviations: (n, V)."""
        deviation = np.sqrt(np.maximum(self.posterior.prior - gain, 1e-12)) * np.ones(self.sizes.tasks)
        whole = np.sqrt(self.posterior.variance_of(mix, gain))
        return np.asarray(self.beta * (whole / (deviation @ mix))[:, None] * deviation)

    def snapped(self, blend: Blend) -> Blend:
        """Play a blend near a known arm as that arm."""
        pool = self.posterior
        arm, distance = pool.nearest(blend)
        known = distance < self.config.snap and np.count_nonzero(pool.arms[arm]) <= self.sizes.max_active
        return pool.arms[arm] if known else blend

    def _left_by(self, blend: Blend, mix: TaskMix, variance: FloatArray) -> FloatArray:
        """Share of each candidate's variance that a reward still to come will leave, judged by nearness alone."""
        pool = self.posterior
        near = correlation(pool.points, blend[None], self.config.open_reach * pool.width)[:, 0]
        known = float(variance[int(near.argmax())])
        return np.asarray(1.0 - near * near * known / (known + pool.noise * float(mix @ mix)))

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:  # noqa: ARG002
        """Pool the reward, then grow the tree and climb for this mix."""
        self.asked += 1
        self._absorb(blend, reward, counts)
        if self.config.baseline != "none":
            base = baseline_of(self.config, self.sizes, mix)
            self.ledger.serve(blend[None])
            self.ledger.tell([(mix, blend, base)], self.posterior.mean_at)
        self._remember(mix)
        if self.config.room:
            self._grow(mix)
        if len(self.climbers):
            self._climb(mix)

    def learn_panel(self, readings: Readings, panel: Panel, rewards: FloatArray, counts: FloatArray) -> None:
        """Pool the rewards of all models, one slot in all, and grow the tree for each model's own mix."""
        self.asked += len(panel.blends)
        mixes = group_mixes(panel.estimates, readings)
        taught: list[float] = []
        for blend, own, reward, count in zip(panel.blends, mixes, rewards, counts, strict=True):
            if count.any():
                taught.append(self._observe(blend, reward, count))
                self._remember(own)
        self._count(float(np.mean(taught)))
        if self.config.baseline != "none":
            self.ledger.serve(panel.blends)
            self.ledger.tell(entries(self, readings, panel), self.posterior.mean_at)
        for own in mixes if self.config.room else ():
            self._grow(own)

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        """Pool a reward; each makes the opening one ask shorter."""
        self.asked += 1
        self._absorb(blend, reward, counts)

    def _absorb(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        self._count(self._observe(blend, reward, counts))

    def _observe(self, blend: Blend, reward: Reward, counts: Counts) -> float:
        """Pool a reward, after what it contradicts was forgotten; how much it taught."""
        if self.config.change > 0 and self.fitted:
            mean, variance = self.posterior.predicted(blend, counts)
            changed = self.watch.see(
                reward - mean, variance, shift=self.posterior.variance, seen=counts > 0, slot=self.slots
            )
            if len(changed):
                self._unlearn(changed)
        return self.posterior.observe(blend, reward, counts)

    def _unlearn(self, changed: NDArray[np.intp]) -> None:
        """Forget the rewards of changed tasks; where several changed together, start over with all of them."""
        self.ledger.settle(self.posterior.mean_at)
        all_ = self.sizes.tasks
        if self.watch.together(self.slots):
            changed = np.arange(all_)
            self.posterior.start_over()
            self.watch.begin()
            self.asked = self.since = self.fitted = 0
        self.told *= 1.0 - len(changed) / all_
        self.learned *= 1.0 - len(changed) / all_
        self.posterior.forget_tasks(changed)

    def _remember(self, mix: TaskMix) -> None:
        if not any(np.array_equal(mix, known) for known in self.mixes):
            self.mixes.append(mix)

    def _count(self, taught: float) -> None:
        self.told += 1.0
        self.learned += taught
        self.slots += 1
        self.since += 1
        if self.since in self.config.refits:
            self.posterior.refit()
            self.watch.begin()
            self.fitted = self.slots
        elif self.since in self.config.noise_fits:
            self.posterior.refit_early()

    def _grow(self, mix: TaskMix) -> None:
        """Expand the leaf of highest bound, or else of highest mean, once its variance is low enough."""
        pool, tree = self.posterior, self.tree
        mean = np.where(tree.ripe, pool.mean[self.nodes] @ mix, -np.inf)
        variance = pool.variance_of(mix, pool.gain[self.nodes])
        settled = self.config.expand_below * pool.prior_of(mix)
        for node in (first_best(mean + self.beta * np.sqrt(variance)), first_best(mean)):
            if tree.ripe[node] and variance[node] < settled:
                order = np.argsort(-(pool.mean[: self.sizes.experts] @ mix), kind="stable")  # best single expert first
                children = tree.offspring(node, order)
                self._recycle(len(children) - tree.free, keep=node)
                if len(children) <= tree.free:
                    pool.replace_points(self.nodes.start + tree.add(node, children), children)
                return

    def _recycle(self, count: int, *, keep: int) -> None:
        """Take out the leaves farthest below the best leaf for every recent mix."""
        if count <= 0:
            return
        pool, leaves = self.posterior, self.tree.leaves
        leaves = leaves[(leaves != keep) & (leaves != 0)]
        rows = self.nodes.start + leaves
        mean, gain, merit = pool.mean[rows], pool.gain[rows], np.full(len(rows), -np.inf)
        for mix in self.mixes:
            bound = mean @ mix + self.beta * np.sqrt(pool.variance_of(mix, gain))
            merit = np.maximum(merit, bound - bound.max(initial=-np.inf))
        self.tree.remove(leaves[np.argsort(merit, kind="stable")[:count]])

    def _climb(self, mix: TaskMix) -> None:
        """Move the best candidates up the bound, each step half the last, and keep every blend on the way."""
        pool, config = self.posterior, self.config
        bound = pool.mean @ mix + self.beta * np.sqrt(pool.variance_of(mix, pool.gain))
        bound[self.nodes][~self.tree.used] = -np.inf
        best = pool.points[np.argpartition(bound, -config.climbers)[-config.climbers :]]
        met = self.climbed(best, mix, steps=config.climbs, size=config.climb_size)
        pool.replace_points(self.climbers, np.concatenate(met))

    def climbed(self, x: FloatArray, mix: TaskMix, *, steps: int, size: float, shrink: float = 0.5) -> list[FloatArray]:
        """Every blend (n, K) on the way up the bound from x (n, K), a few gradient steps."""
        met, step = [x], size
        for _ in range(steps):
            slope = self.posterior.slope_of_bound(x, mix, self.beta)
            slope -= slope.mean(axis=1, keepdims=True)
            slope *= step / np.maximum(np.sqrt((slope * slope).sum(axis=1, keepdims=True)), 1e-12)
            x = np.maximum(x + slope, 0.0)
            x = keep_largest(x / x.sum(axis=1, keepdims=True), self.sizes.max_active)
            met.append(x)
            step *= shrink
        return met[1:] or met

    @property
    def account(self) -> Account | None:
        """What exploration has cost and may cost; None without a baseline."""
        return None if self.config.baseline == "none" else account(self)

    def view(self) -> TreeView:
        """Show the vertex tree, renumbered so that parents come first; all of it is feasible."""
        tree, pool = self.tree, self.posterior
        order: NDArray[np.intp] = np.flatnonzero(tree.used)
        order = order[np.argsort(tree.depth[order], kind="stable")]
        place = np.full(len(tree.used) + 1, -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        visits = np.zeros(len(order))
        for row, node in enumerate(order):
            arm, distance = pool.nearest(tree.blend[node])
            visits[row] = pool.visits[arm] if distance < self.config.snap else 0.0
        return TreeView(
            parent=place[tree.parent[order]],
            depth=tree.depth[order],
            blend=tree.blend[order],
            visits=visits,
            value=pool.mean[self.nodes][order],
            leaf=tree.children[order] == 0,
            active=np.ones(len(order), dtype=np.bool_),
            node=order.astype(np.int64),
        )

    @property
    def state(self) -> GpTreeState:
        """Everything that changes, as one value."""
        mixes = np.array(list(self.mixes)).reshape(len(self.mixes), self.sizes.tasks)
        return GpTreeState(
            self.slots, self.asked, self.told, self.learned, self.since, self.fitted, mixes,
            self.posterior.state, self.tree.state, self.ledger.state, self.watch.state,
        )  # fmt: skip

    def restore(self, state: GpTreeState) -> None:
        """Undo to what `state` was."""
        self.slots, self.asked, self.told, self.learned = state.slots, state.asked, state.told, state.learned
        self.since, self.fitted = state.since, state.fitted
        self.mixes = deque(state.mixes, maxlen=self.config.recent_mixes)
        self.posterior.restore(state.posterior)
        self.tree.restore(state.tree)
        self.ledger.restore(state.ledger)
        self.watch.restore(state.watch)
