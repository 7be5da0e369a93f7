"""Algorithm 1, line by line, and the router `Tanbr`, which puts it (or its faster default) behind ask and tell."""

from typing import Any, Literal

import numpy as np

from tanbr.config import read
from tanbr.errors import InputError
from tanbr.router.ask_tell import AskTell, Policy
from tanbr.router.confidence import Confidence, DiagonalConfidence, ExactConfidence, theory_gamma
from tanbr.router.config import PaperModeConfig, RouterConfig
from tanbr.router.network import Forward, descend, initial_weights, predict, unit, value_and_gradient
from tanbr.router.pooled import PooledTanbr
from tanbr.router.records import Terms, TreeView
from tanbr.router.rewards import RewardTable
from tanbr.router.sizes import Sizes, as_size
from tanbr.router.theory import expansion_threshold
from tanbr.router.tree import PartitionTree
from tanbr.state import Arrays
from tanbr.types import Blend, Counts, Reward, TaskMix

Mode = Literal["default", "paper"]


class Algorithm1:
    """The tree-structured adaptive neural bandit router, in the paper's order; `line n` is the line of Alg. 1."""

    def __init__(self, sizes: Sizes, *, config: PaperModeConfig, rng: np.random.Generator) -> None:
        self.config, self.rng, self.max_active = config, rng, sizes.max_active
        w, lam = config.width, config.ridge
        # line 1: θ_0, Z_0 = λI, H = {[0, 1]^K}
        self.start = initial_weights(inputs=sizes.experts, width=w, outputs=sizes.tasks, layers=config.layers, rng=rng)
        self.theta = self.start
        shapes = [(theta.shape[0], theta.shape[1]) for theta in self.start]
        form = ExactConfidence if config.confidence == "exact" else DiagonalConfidence
        self.Z: Confidence = form(shapes, ridge=lam, width=w)
        self.tree = PartitionTree(
            experts=sizes.experts, max_active=sizes.max_active, interior=config.representative == "proportional"
        )
        self.rewards = RewardTable(experts=sizes.experts, tasks=sizes.tasks, limit=config.memory)
        self.t = 0  # slots told
        self.rate = config.learning_rate  # η
        self.gamma = self._gamma()
        self._candidates()
        self._look()

    def choose(self, mix: TaskMix, open_blends: list[Blend]) -> tuple[Blend, Terms]:  # noqa: ARG002
        """Lines 3 to 7: the active leaf of highest upper confidence bound. ψ_t (line 3) is `mix`."""
        leaves = self.leaves  # lines 4 and 5: N_t and {x_{h,i}}, made when the tree last changed
        # line 6, eq. (u_node)
        mean, gradient = self.forward.value_and_gradient(mix)  # ψᵀf, g
        width = self.gamma * np.sqrt(self.Z.squared_width(gradient))  # γ √(gᵀZ⁻¹g/w)
        U = mean + self.granularity + width
        # line 7
        best = int(U.argmax())
        node = int(leaves[best])
        terms = Terms(
            mean=float(mean[best]),
            granularity=float(self.granularity[best]),
            uncertainty=float(width[best]),
            node=node,
            depth=int(self.tree.depth[node]),
            candidates=len(leaves),
        )
        return self.tree.blend[node], terms

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Lines 8 to 14: count, expand, update Z, train. The reward of line 8 is r = f*(x) plus noise."""
        config, tree, node = self.config, self.tree, terms.node
        self.t += 1
        tree.visits[node] += 1  # line 9
        threshold = expansion_threshold(
            terms.depth,
            self.t,
            constant=config.threshold_constant,
            nu=config.nu,
            rho=config.rho,
            delta=config.delta,
        )
        if tree.leaf[node] and tree.visits[node] >= threshold:  # line 10; a late reward may find its leaf expanded
            tree.expand(node, self.rng)  # line 11
            self._candidates()
        self._update(mix, blend, reward, counts)

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        """Lines 13 and 14 for a reward from elsewhere, as if all tasks had been equally frequent."""
        self._update(np.full(len(reward), 1.0 / len(reward)), blend, reward, counts)

    def _update(self, mix: TaskMix, blend: Blend, reward: Reward, counts: Counts) -> None:
        config = self.config
        x = unit(blend[None])
        self.Z.update(value_and_gradient(self.theta, x, mix)[1])  # line 13, g at θ_{t−1}
        self.gamma = self._gamma()
        # line 14: J steps on L(θ)
        self.rewards.add(x[0], reward, counts)
        scale = 1.0 if config.loss == "sum" else 1.0 / max(self.rewards.total, 1.0)
        self.theta, self.rate = descend(
            self.theta,
            self.start,
            self.rewards.data,
            ridge=config.ridge * scale,
            scale=scale,
            rate=self.rate,
            steps=config.steps,
        )
        self._look()

    def _candidates(self) -> None:
        """Lines 4 and 5."""
        self.leaves = self.tree.active_leaves
        self.inputs = unit(self.tree.blend[self.leaves])
        self.granularity = self.config.nu * self.config.rho ** self.tree.depth[self.leaves].astype(np.float64)  # ν₁ρ^h

    def _look(self) -> None:
        """Do the part of line 6 that does not depend on ψ as soon as θ, Z and the leaves are known."""
        self.forward = Forward(self.theta, self.inputs)
        self.Z.prepare(self.inputs)

    def _gamma(self) -> float:
        if self.config.gamma == "constant":
            return self.config.exploration
        return theory_gamma(self.t, self.Z.log_determinant, self.config)

    def view(self) -> TreeView:
        """Show the partition tree; inactive nodes have no blend (zeros) and no value (NaN)."""
        tree = self.tree
        value = np.full((len(tree), len(self.theta[-1])), np.nan)
        value[tree.active] = predict(self.theta, unit(tree.blend[tree.active]))
        return TreeView(
            parent=tree.parent.copy(),
            depth=tree.depth.copy(),
            blend=tree.blend.copy(),
            visits=tree.visits.astype(np.float64),
            value=value,
            leaf=tree.leaf & tree.active,
            active=tree.active.copy(),
            node=np.arange(len(tree)),
        )

    def snapshot(self) -> Arrays:
        """Everything that changes, and θ_0."""
        return {
            "numbers": np.array([self.t, self.rate]),
            **{f"start.{i}": theta for i, theta in enumerate(self.start)},
            **{f"theta.{i}": theta for i, theta in enumerate(self.theta)},
            **{f"Z.{name}": array for name, array in self.Z.snapshot().items()},
            **{f"tree.{name}": array for name, array in self.tree.snapshot().items()},
            **{f"rewards.{name}": array for name, array in self.rewards.snapshot().items()},
        }

    def restore(self, arrays: Arrays) -> None:
        """Undo to what `snapshot` returned."""
        layers = range(len(self.start))
        self.t, self.rate = int(arrays["numbers"][0]), float(arrays["numbers"][1])
        self.start = [arrays[f"start.{i}"] for i in layers]
        self.theta = [arrays[f"theta.{i}"] for i in layers]
        self.Z.restore({k.removeprefix("Z."): v for k, v in arrays.items()})
        self.tree.restore({k.removeprefix("tree."): v for k, v in arrays.items()})
        self.rewards.restore({k.removeprefix("rewards."): v for k, v in arrays.items()})
        self.gamma = self._gamma()
        self._candidates()
        self._look()


class Tanbr(AskTell):
    """The tree-structured adaptive bandit router.

    `experts` is K, `tasks` V, `max_active` B (default K). Mode "default" learns in tens of slots; mode "paper" is
    Algorithm 1 as printed. Same arguments and seed, same choices.
    """

    kind = "tanbr"

    def __init__(
        self,
        experts: int,
        tasks: int,
        *,
        max_active: int | None = None,
        mode: Mode = "default",
        seed: int = 0,
        config: RouterConfig | dict[str, Any] | None = None,
    ) -> None:
        sizes = Sizes.check(experts, tasks, max_active)
        seed = as_size(seed, "seed", least=0)
        if not isinstance(config, RouterConfig):
            config = read(RouterConfig, config or {}, source="config")
        own = config.default.own_experts
        if own and not (len(own) == tasks and all(0 <= expert < experts for expert in own)):
            raise InputError(f"own_experts must name one of {experts} experts for each of {tasks} tasks (got {own})")
        rng = np.random.default_rng(seed)
        policy: Policy
        if mode == "default":
            policy = PooledTanbr(sizes, config=config.default, rng=rng)
        elif mode == "paper":
            policy = Algorithm1(sizes, config=config.paper, rng=rng)
        else:
            raise InputError(f'mode must be "default" or "paper" (got {mode!r})')
        self.mode, self.config = mode, config
        settings = {"mode": mode, "seed": seed, "config": config.model_dump(mode="json")}
        super().__init__(policy, rng, sizes, settings=settings, history=config.history)
