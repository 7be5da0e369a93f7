"""Mode "default": upper confidence bounds of a pooled Gaussian process over fixed blends and a tree of blends."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from tanbr.config import DefaultModeConfig
from tanbr.router.ask_tell import Sizes, Terms, TreeView
from tanbr.router.posterior import PooledPosterior
from tanbr.router.simplex import keep_largest, project
from tanbr.router.state import Arrays
from tanbr.router.vertex_tree import VertexTree
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix


def fixed_blends(*, experts: int, max_active: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Vertices, the even blend, pair midpoints, blends of two or three experts, a few dense: (count, K)."""
    vertices = np.eye(experts)
    pairs = np.array(np.triu_indices(experts, 1)).T
    pairs = rng.permutation(pairs)[: count // 4]
    midpoints = 0.5 * (vertices[pairs[:, 0]] + vertices[pairs[:, 1]])
    parts = [vertices, np.full((1, experts), 1.0 / experts), midpoints]
    missing = max(count - sum(map(len, parts)), 0)
    random = np.zeros((missing, experts))
    for row, blend in enumerate(random):
        active = experts if row % 4 == 3 else min(2 + row % 2, experts)
        chosen = rng.choice(experts, size=active, replace=False)
        blend[chosen] = rng.dirichlet(np.ones(active))
    return keep_largest(np.concatenate([*parts, random])[: max(count, experts + 1)], max_active)


class PooledTanbr:
    """Chooses by upper confidence bound, learns in constant time per slot, refines its tree where it pays."""

    def __init__(self, sizes: Sizes, *, config: DefaultModeConfig, rng: np.random.Generator) -> None:
        experts, tasks, max_active = sizes.experts, sizes.tasks, sizes.max_active
        self.config, self.max_active, self.rng = config, max_active, rng
        fixed = fixed_blends(experts=experts, max_active=max_active, count=config.pool, rng=rng)
        self.tree = VertexTree(experts=experts, max_active=max_active, room=config.room, children=config.children)
        self.start = len(fixed)  # row of the tree's root among the points
        points = np.concatenate([fixed, self.tree.blend])
        points[self.start :] = self.tree.blend[0] if config.room else 0.0
        self.posterior = PooledPosterior(points, tasks=tasks, config=config)
        self.opening = [*range(min(experts, config.pool) + 1)] if max_active > 1 else [*range(experts)]
        self.slots = 0
        self.asked = 0
        self.mixes: deque[TaskMix] = deque(maxlen=config.recent_mixes)

    # --- ask

    def choose(self, mix: TaskMix, open_blends: list[Blend]) -> tuple[Blend, Terms]:
        """Take the blend of highest bound among the fixed ones, the tree's, and the best few after gradient steps."""
        pool = self.posterior
        if self.asked < len(self.opening):
            blend = pool.points[self.opening[self.asked]]
            self.asked += 1
            mean, gain = pool.predict(blend[None])
            return blend, self._terms(mix, mean, gain, node=-1)
        mean, spread = self._score(mix, pool.mean, pool.gain, open_blends)
        bound = mean + self.config.beta * spread
        bound[self.start :][~self.tree.used] = -np.inf
        best = int(bound.argmax())
        blend, node = pool.points[best], best - self.start
        terms = self._terms(mix, pool.mean[best : best + 1], pool.gain[best : best + 1], node=max(node, -1))
        polished = self._polish(mix, bound)
        if len(polished):
            p_mean, p_gain = pool.predict(polished)
            p_bound = p_mean @ mix + self.config.beta * np.sqrt(pool.variance_of(mix, p_gain))
            top = int(p_bound.argmax())
            if p_bound[top] > bound[best]:
                blend = polished[top]
                terms = self._terms(mix, p_mean[top : top + 1], p_gain[top : top + 1], node=-1)
        arm, distance = pool.nearest(blend)
        return (pool.arms[arm] if distance < self.config.snap else blend), terms

    def _score(
        self, mix: TaskMix, mean: FloatArray, gain: FloatArray, open_blends: list[Blend]
    ) -> tuple[FloatArray, FloatArray]:
        return mean @ mix, np.sqrt(self.posterior.variance_of(mix, gain))

    def _terms(self, mix: TaskMix, mean: FloatArray, gain: FloatArray, *, node: int) -> Terms:
        spread = float(np.sqrt(self.posterior.variance_of(mix, gain)[0]))
        depth = int(self.tree.depth[node]) if node >= 0 else 0
        count = self.start + int(self.tree.used.sum())
        return Terms(float(mean[0] @ mix), 0.0, self.config.beta * spread, node, depth, count)

    def _polish(self, mix: TaskMix, bound: FloatArray) -> FloatArray:
        count, pool = self.config.polish_from, self.posterior
        if not count or not self.config.polish_steps:
            return np.zeros((0, pool.points.shape[1]))
        x = pool.points[np.argpartition(bound, -count)[-count:]]
        squares = mix * mix
        used = pool.used
        joint = (
            np.tensordot(squares, pool.inverse[:, :used, :used], axes=1)
            if len(pool.inverse) > 1
            else pool.inverse[0, :used, :used] * squares.sum()
        )
        weight = pool.alpha[:used] @ mix
        visited = []
        step = 0.1
        for _ in range(self.config.polish_steps):
            slope = self._slope(x, weight, joint, float(squares.sum()))
            slope -= slope.mean(axis=1, keepdims=True)
            slope /= np.maximum(np.linalg.norm(slope, axis=1, keepdims=True), 1e-12)
            x = keep_largest(project(x + step * slope), self.max_active)
            visited.append(x)
            step *= 0.5
        return np.concatenate(visited)

    def _slope(self, x: FloatArray, weight: FloatArray, joint: FloatArray, square: float) -> FloatArray:
        """Gradient of the bound at points (n, K)."""
        pool = self.posterior
        rows = pool.kernel(x)  # (n, m)
        spread = np.sqrt(np.maximum(pool.prior * square - np.einsum("ij,ij->i", rows @ joint, rows), 1e-12))
        # d bound / d kernel row
        pull = weight - self.config.beta * (rows @ joint) / spread[:, None]
        from tanbr.router.posterior import squared_distance

        r = np.sqrt(5.0 * squared_distance(x, pool.arms[: pool.used])) / pool.width
        slope = -pool.variance * (5.0 / (3.0 * pool.width**2)) * (1.0 + r) * np.exp(-r)  # dk/dx = slope·(x − arm)
        pull = pull * slope
        return np.asarray(x * pull.sum(axis=1, keepdims=True) - pull @ pool.arms[: pool.used])

    # --- tell

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Pool the reward, refit seldom, grow the tree for this mix."""
        if self.config.forgetting < 1.0:
            self.posterior.forget(self.config.forgetting)
        self.warm_start(blend, reward, counts)
        if not any(np.array_equal(mix, known) for known in self.mixes):
            self.mixes.append(mix)
        if self.config.room:
            self._grow(mix)

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        """Pool a reward, refit seldom."""
        self.posterior.observe(blend, reward, counts)
        self.slots += 1
        if self.slots in self.config.refits:
            self.posterior.refit()

    def _grow(self, mix: TaskMix) -> None:
        """Expand the leaf of highest bound, or of highest mean, once its variance is low enough."""
        pool, leaves = self.posterior, self.tree.leaves
        rows = self.start + leaves
        mean, variance = pool.mean[rows] @ mix, pool.variance_of(mix, pool.gain[rows])
        settled = variance < self.config.expand_below * pool.prior * float(mix @ mix)
        for place in {int((mean + self.config.beta * np.sqrt(variance)).argmax()), int(mean.argmax())}:
            if settled[place]:
                self._expand(int(leaves[place]), mix)
                return

    def _expand(self, node: int, mix: TaskMix) -> None:
        vertex_values = self.posterior.mean[: self.tree.blend.shape[1]] @ mix
        order = np.argsort(-vertex_values, kind="stable")
        children = self.tree.offspring(node, order)
        free = int(np.count_nonzero(~self.tree.used))
        if len(children) > free:
            self._recycle(len(children) - free, keep=node)
            if len(children) > int(np.count_nonzero(~self.tree.used)):
                return
        if len(children):
            rows = self.tree.add(node, children)
            self.posterior.replace_points(self.start + rows, children)

    def _recycle(self, count: int, *, keep: int) -> None:
        """Take out the leaves farthest below the best for every recent mix."""
        leaves = self.tree.leaves
        leaves = leaves[(leaves != keep) & (leaves != 0)]
        rows = self.start + leaves
        pool = self.posterior
        merit = np.full(len(leaves), -np.inf)
        for mix in self.mixes:
            bound = pool.mean[rows] @ mix + self.config.beta * np.sqrt(pool.variance_of(mix, pool.gain[rows]))
            merit = np.maximum(merit, bound - bound.max(initial=-np.inf))
        worst = np.argsort(merit, kind="stable")[:count]
        self.tree.remove(leaves[worst])

    # --- views and state

    def view(self) -> TreeView:
        """Show the vertex tree, renumbered so that parents come first."""
        tree = self.tree
        order: NDArray[np.intp] = np.flatnonzero(tree.used)
        order = order[np.argsort(tree.depth[order], kind="stable")]
        place = np.full(len(tree.used) + 1, -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        blends = tree.blend[order]
        visits = np.zeros(len(order))
        for row, blend in enumerate(blends):
            arm, distance = self.posterior.nearest(blend)
            if distance < self.config.snap:
                visits[row] = self.posterior.weights[arm].max()
        return TreeView(
            parent=place[tree.parent[order]],
            depth=tree.depth[order].copy(),
            blend=blends,
            visits=visits,
            value=self.posterior.mean[self.start + order],
            leaf=tree.children[order] == 0,
            active=np.ones(len(order), dtype=np.bool_),
        )

    def snapshot(self) -> Arrays:
        """Everything that changes."""
        return {
            "counters": np.array([self.slots, self.asked]),
            "mixes": np.array(list(self.mixes)).reshape(len(self.mixes), -1),
            **{f"posterior.{name}": array for name, array in self.posterior.snapshot().items()},
            **{f"tree.{name}": array for name, array in self.tree.snapshot().items()},
        }

    def restore(self, arrays: Arrays) -> None:
        """Undo to what `snapshot` returned."""
        self.slots, self.asked = (int(value) for value in arrays["counters"])
        self.mixes.extend(arrays["mixes"])
        self.posterior.restore({k.removeprefix("posterior."): v for k, v in arrays.items()})
        self.tree.restore({k.removeprefix("tree."): v for k, v in arrays.items()})
