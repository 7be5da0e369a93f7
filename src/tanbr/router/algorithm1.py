"""Algorithm 1: the tree-structured adaptive neural bandit router, in the paper's order; `line n` is its line n.

Everything that changes is one frozen `State`; a slot takes it from S_{t−1} to S_t. Nothing else is kept: each slot
computes what the paper says from the state alone.
"""

from dataclasses import dataclass, replace

import numpy as np

from tanbr.router.argmax import first_best
from tanbr.router.confidence import Confidence, DiagonalConfidence, ExactConfidence, theory_gamma
from tanbr.router.config import PaperModeConfig
from tanbr.router.network import Weights, descend, initial_weights, predict, unit, value_and_gradient
from tanbr.router.panel import Candidates, ModelByModel, Panel, chosen, panel_of
from tanbr.router.readings import Readings
from tanbr.router.records import Open, Terms, TreeView
from tanbr.router.rewards import RewardTable
from tanbr.router.simplex import corner_point, keep_largest, proportional_point
from tanbr.router.sizes import Sizes
from tanbr.router.theory import expansion_threshold
from tanbr.router.tree import PartitionTree
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix


@dataclass(frozen=True, eq=False)
class Belief:
    """What is known of the rewards: the network, its confidence and the data behind them."""

    start: Weights  # θ_0: L matrices (w, K), (w, w) …, (V, w)
    theta: Weights  # θ_t, the same shapes
    Z: Confidence  # Z_t
    rewards: RewardTable  # the slots told, m distinct blends
    t: int  # how many slots were told
    rate: float  # η, halved where the printed step would diverge


@dataclass(frozen=True, eq=False)
class State:
    """S_t: what is known, and the tree of n nodes."""

    belief: Belief
    tree: PartitionTree  # H


class NeuralBandit:
    """Lines 1, 6, 13 and 14 without the tree: what Algorithm 1 and NUCB have in common."""

    def __init__(self, sizes: Sizes, config: PaperModeConfig) -> None:
        self.sizes, self.config = sizes, config
        if config.gamma == "theory":
            theory_gamma(0, 0.0, config)  # refuses settings under which it is not defined

    def start(self, rng: np.random.Generator) -> Belief:
        """Line 1: θ_0 and Z_0 = λI."""
        config, (K, V) = self.config, (self.sizes.experts, self.sizes.tasks)
        theta = initial_weights(inputs=K, width=config.width, outputs=V, layers=config.layers, rng=rng)
        form = ExactConfidence if config.confidence == "exact" else DiagonalConfidence
        Z = form.start([matrix.shape for matrix in theta], ridge=config.ridge, width=config.width)
        return Belief(theta, theta, Z, RewardTable.empty(experts=K, tasks=V), 0, config.learning_rate)

    def bound(self, belief: Belief, blends: FloatArray, mix: TaskMix) -> tuple[FloatArray, FloatArray]:
        """Line 6, eq. (u_node): the terms ψᵀf and γ√(gᵀZ⁻¹g/w) of blends (n, K), each (n,)."""
        mean, g = value_and_gradient(belief.theta, unit(blends), mix)
        return mean, self._gamma(belief) * np.sqrt(belief.Z.squared_width(g))

    def task_bounds(self, belief: Belief, blends: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Line 6 for every task by itself, ψ one-hot: the terms of blends (n, K), each (n, V)."""
        terms = [self.bound(belief, blends, mix) for mix in np.eye(self.sizes.tasks)]
        return np.stack([mean for mean, _ in terms], axis=1), np.stack([width for _, width in terms], axis=1)

    def learned(self, belief: Belief, mix: TaskMix, blend: Blend, reward: Reward, counts: Counts) -> Belief:
        """Lines 13 and 14: Z with g at θ_{t−1}, then J steps on L(θ)."""
        config, x = self.config, unit(blend[None])
        Z = belief.Z.updated(value_and_gradient(belief.theta, x, mix)[1])  # line 13
        rewards = belief.rewards.added(x[0], reward, counts, limit=config.memory)
        scale = 1.0 if config.loss == "sum" else 1.0 / max(rewards.total, 1.0)
        theta, rate = descend(  # line 14
            belief.theta, belief.start, rewards,
            ridge=config.ridge * scale, scale=scale, rate=belief.rate, steps=config.steps,
        )  # fmt: skip
        return replace(belief, theta=theta, Z=Z, rewards=rewards, rate=rate)

    def _gamma(self, belief: Belief) -> float:
        if self.config.gamma == "constant":
            return self.config.exploration
        return theory_gamma(belief.t, belief.Z.log_determinant, self.config)


class Algorithm1(ModelByModel):
    """The paper's loop."""

    def __init__(self, sizes: Sizes, *, config: PaperModeConfig, rng: np.random.Generator) -> None:
        self.sizes, self.config, self.rng = sizes, config, rng
        self.bandit = NeuralBandit(sizes, config)
        # line 1: θ_0, Z_0 = λI, H = {[0, 1]^K}
        self.state = State(self.bandit.start(rng), PartitionTree.root(sizes.experts, point=self._point))

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:  # noqa: ARG002
        """Lines 3 to 7: the active leaf of highest upper confidence bound. ψ_t (line 3) is `mix`."""
        tree = self.state.tree
        leaves = tree.active_leaves  # line 4: N_t
        blends = tree.blend[leaves]  # line 5: {x_{h,i}}
        mean, width = self.bandit.bound(self.state.belief, blends, mix)  # line 6
        granularity = self.config.nu * self.config.rho ** tree.depth[leaves].astype(np.float64)  # ν₁ρ^h
        best = first_best(mean + granularity + width)  # line 7
        node = int(leaves[best])
        terms = Terms(
            mean=float(mean[best]), granularity=float(granularity[best]), uncertainty=float(width[best]),
            node=node, depth=int(tree.depth[node]), candidates=len(leaves),
        )  # fmt: skip
        return blends[best], terms

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Lines 8 to 14: the reward of line 8 is r = f*(x) plus noise; count, expand, update Z, train."""
        belief, tree, node = self.state.belief, self.state.tree, terms.node
        belief = replace(belief, t=belief.t + 1)
        tree = tree.visited(node)  # line 9
        if tree.leaf[node] and tree.visits[node] >= self._threshold(terms.depth, belief.t):  # line 10
            tree = tree.expanded(node, rng=self.rng, point=self._point)  # lines 11 and 12
        belief = self.bandit.learned(belief, mix, blend, reward, counts)  # lines 13 and 14
        self.state = State(belief, tree)

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:  # noqa: ARG002
        """Lines 3 to 7 for G models: the leaves whose bounds, task by task, are worth most together."""
        tree = self.state.tree
        leaves = tree.active_leaves
        mean, width = self.bandit.task_bounds(self.state.belief, tree.blend[leaves])
        granularity = self.config.nu * self.config.rho ** tree.depth[leaves].astype(np.float64)
        found = Candidates(tree.blend[leaves], mean, width, granularity, leaves.astype(np.int64), tree.depth[leaves])
        return panel_of(found, chosen(found, readings, models), readings)

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        """Lines 13 and 14 for a reward from elsewhere, as if all tasks had been equally frequent."""
        even = np.full(len(reward), 1.0 / len(reward))
        belief = self.bandit.learned(self.state.belief, even, blend, reward, counts)
        self.state = replace(self.state, belief=belief)

    def _threshold(self, depth: int, t: int) -> float:
        """τ_h(t); a late reward may find its leaf expanded, and then the threshold is not asked for."""
        config = self.config
        return expansion_threshold(
            depth, t, constant=config.threshold_constant, nu=config.nu, rho=config.rho, delta=config.delta
        )

    def _point(self, low: FloatArray, high: FloatArray) -> Blend:
        """Find a point of the box that sums to 1 (1a), with the B largest weights kept (1b)."""
        point = proportional_point if self.config.representative == "proportional" else corner_point
        return keep_largest(point(low, high), self.sizes.max_active)

    def view(self) -> TreeView:
        """Show the partition tree; inactive nodes have no blend (zeros) and no value (NaN)."""
        tree, theta = self.state.tree, self.state.belief.theta
        value = np.full((len(tree), self.sizes.tasks), np.nan)
        value[tree.active] = predict(theta, unit(tree.blend[tree.active]))
        return TreeView(
            parent=tree.parent, depth=tree.depth, blend=tree.blend, visits=tree.visits.astype(np.float64),
            value=value, leaf=tree.leaf & tree.active, active=tree.active, node=np.arange(len(tree)),
        )  # fmt: skip

    def restore(self, state: State) -> None:
        """Undo to what `state` was."""
        self.state = state
