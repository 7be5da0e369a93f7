"""Algorithm 1, whole: the tree-structured adaptive neural bandit router, in the paper's order; `line n` is its line n.

Everything that changes is one frozen `PaperState`; a slot takes it from S_{t−1} to S_t, and nothing is kept besides.

The network is f(x; θ) = √w θ_L σ(θ_{L−1} … σ(θ_1 x)) with V outputs and σ = ReLU. The analysis feeds [x, x]/√2 with
‖x‖ = 1 through block-diagonal layers so that f(x; θ_0) = 0. Both halves of such an input get the same gradient, so θ_1
is kept folded, (left + right)/√2: the same function, the same training, and p = wK + wV + w²(L − 2) numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import ConfigError
from tanbr.router.config import PaperModeConfig
from tanbr.router.shell import Question
from tanbr.router.simplex import Sizes, first_best, keep_largest
from tanbr.router.theory import expansion_threshold
from tanbr.types import Blend, Counts, Decision, FloatArray, Reward, TaskMix, Terms, lock

Weights: TypeAlias = tuple[FloatArray, ...]  # θ: L matrices (w, K), (w, w) …, (V, w)
Point: TypeAlias = Callable[[FloatArray, FloatArray], Blend]  # of a box, low and high (K,): its representative (K,)
MOST_EXACT = 5000  # weights of which all of Z is kept: 200 MB, and every slot writes it anew

# ---- The partition tree H of Sec. III-B: boxes in [0, 1]^K, halved along a random dimension ----


def is_feasible(low: FloatArray, high: FloatArray) -> bool:
    """Whether the box [low, high] holds a point that sums to 1: (1a)."""
    return float(low.sum()) <= 1.0 <= float(high.sum())


def corner_point(low: FloatArray, high: FloatArray) -> Blend:
    """Find a basic feasible solution of the LP {low ≤ x ≤ high, Σx = 1}: fill the sides in order until the sum is 1."""
    span = high - low
    before = np.cumsum(span) - span
    point = low + np.clip(1.0 - low.sum() - before, 0.0, span)
    return np.asarray(point / point.sum())


def proportional_point(low: FloatArray, high: FloatArray) -> Blend:
    """Interior point low + s(high − low) with Σ = 1."""
    span = high - low
    total = float(span.sum())
    share = (1.0 - float(low.sum())) / total if total > 0 else 0.0
    point = low + np.clip(share, 0.0, 1.0) * span
    return np.asarray(point / point.sum())


@dataclass(frozen=True, eq=False)
class PartitionTree:
    """Nodes (h, i) as columns, in the order they were made; row 0 is the root H_{0,1} = [0, 1]^K."""

    low: FloatArray  # (n, K) sides of the boxes
    high: FloatArray  # (n, K)
    blend: FloatArray  # (n, K) x_{h,i}, as it would be served; 0 where the box holds no feasible blend
    parent: NDArray[np.int64]  # (n,) -1 for the root
    depth: NDArray[np.int64]  # (n,) h
    visits: NDArray[np.int64]  # (n,) P_{h,i}
    leaf: NDArray[np.bool_]  # (n,)
    active: NDArray[np.bool_]  # (n,) whether the box holds a feasible blend

    def __post_init__(self) -> None:
        lock(self)

    @classmethod
    def root(cls, experts: int, *, point: Point) -> "PartitionTree":
        """Make the tree of one node."""
        low, high, yes = np.zeros(experts), np.ones(experts), np.ones(1, dtype=np.bool_)
        none = np.zeros(1, dtype=np.int64)
        return cls(low[None], high[None], point(low, high)[None], none - 1, none, none, yes, yes)

    def __len__(self) -> int:
        """How many nodes there are, inner and inactive ones included."""
        return len(self.parent)

    @property
    def active_leaves(self) -> NDArray[np.intp]:
        """N_t: rows of the leaves that hold a feasible blend."""
        return np.flatnonzero(self.leaf & self.active)

    def visited(self, node: int) -> "PartitionTree":
        """P_{h,i} + 1."""
        return replace(self, visits=self.visits + (np.arange(len(self)) == node))

    def expanded(self, node: int, *, rng: np.random.Generator, point: Point) -> "PartitionTree":
        """Halve a leaf's box along a random dimension; children without a feasible blend are inactive."""
        side = int(rng.integers(self.low.shape[1]))
        middle = 0.5 * (self.low[node, side] + self.high[node, side])
        low, high = self.low[[node, node]], self.high[[node, node]]
        high[0, side] = low[1, side] = middle
        active = np.array([is_feasible(*box) for box in zip(low, high, strict=True)])
        blend = np.zeros_like(low)
        for child in np.flatnonzero(active):
            blend[child] = point(low[child], high[child])
        children: dict[str, NDArray[Any]] = {
            "low": low, "high": high, "blend": blend, "parent": np.array([node, node]), "active": active,
            "depth": self.depth[[node, node]] + 1, "visits": np.zeros(2, np.int64), "leaf": np.ones(2, np.bool_),
        }  # fmt: skip
        above = replace(self, leaf=self.leaf & (np.arange(len(self)) != node))
        return PartitionTree(**{name: np.concatenate([getattr(above, name), new]) for name, new in children.items()})


# ---- The reward network and its analytic gradient ----


@dataclass(frozen=True, eq=False)
class Gradient:
    """∇_θ ψᵀf at n inputs in factored form: layer l of row n is the outer product back[l][n] ⊗ front[l][n].

    The last layer's `back` is √w ψ for every input, and kept as one row.
    """

    back: list[FloatArray]  # L arrays (n or 1, rows of θ_l)
    front: list[FloatArray]  # L arrays (n, columns of θ_l)

    def dense(self) -> FloatArray:
        """Return the gradient written out: (n, p)."""
        layers = zip(self.back, self.front, strict=True)
        return np.concatenate([(b[:, :, None] * f[:, None, :]).reshape(len(f), -1) for b, f in layers], axis=1)


def unit(blends: FloatArray) -> FloatArray:
    """Scale blends (n, K) to ‖x‖₂ = 1 (Assumption 2)."""
    return np.asarray(blends / np.sqrt(np.einsum("nk,nk->n", blends, blends))[:, None])


def initial_weights(*, inputs: int, width: int, outputs: int, layers: int, rng: np.random.Generator) -> Weights:
    """θ_0: Gaussian and symmetric, so that f(x; θ_0) = 0 for every x."""
    half = width // 2
    first = rng.normal(0.0, np.sqrt(4.0 / width), (half, inputs)) / np.sqrt(2.0)
    weights = [np.vstack([first, first])]
    for _ in range(layers - 2):
        block, zero = rng.normal(0.0, np.sqrt(4.0 / width), (half, half)), np.zeros((half, half))
        weights.append(np.block([[block, zero], [zero, block]]))
    last = rng.normal(0.0, np.sqrt(2.0 / width), (outputs, half))
    return (*weights, np.hstack([last, -last]))


def _activations(weights: Weights, inputs: FloatArray) -> list[FloatArray]:
    """Compute the inputs of every layer: x, then the hidden layers."""
    layers = [inputs]
    for theta in weights[:-1]:
        layers.append(np.maximum(layers[-1] @ theta.T, 0.0))
    return layers


def predict(weights: Weights, inputs: FloatArray) -> FloatArray:
    """f(x; θ) at unit inputs (n, K): (n, V)."""
    hidden = _activations(weights, inputs)[-1]
    return np.asarray(np.sqrt(hidden.shape[1]) * (hidden @ weights[-1].T))


def value_and_gradient(weights: Weights, inputs: FloatArray, mix: FloatArray) -> tuple[FloatArray, Gradient]:
    """ψᵀf (n,) and its gradient at unit inputs (n, K)."""
    front = _activations(weights, inputs)
    root = float(front[-1].shape[1]) ** 0.5
    head = root * (mix @ weights[-1])  # (w,)
    back = [root * mix[None]]
    slope = head
    for layer in range(len(weights) - 1, 0, -1):
        slope = slope * (front[layer] > 0)  # σ′: (n, w)
        back.append(slope)
        if layer > 1:
            slope = slope @ weights[layer - 1]
    return front[-1] @ head, Gradient(back[::-1], front)


# ---- Line 14: the loss over what was told, and J gradient steps ----


@dataclass(frozen=True, eq=False)
class RewardTable:
    """Mean reward of each distinct input and the weight behind it: the loss has the same gradient in pooled form."""

    inputs: FloatArray  # (m, K) unit, first told first
    target: FloatArray  # (m, V) mean reward, 0 where unseen
    weight: FloatArray  # (m, V) summed counts, 0 where unseen
    total: float  # rewards in the table, in slots: Σ counts / V

    def added(self, x: FloatArray, reward: Reward, counts: Counts, *, limit: int) -> "RewardTable":
        """Pool one reward (V,) with its counts (0 where unseen); beyond `limit` rows the oldest is dropped."""
        table = self if (self.inputs == x).all(axis=1).any() else self._with_row(x, limit)
        row, seen = int((table.inputs == x).all(axis=1).argmax()), counts > 0
        target, weight = table.target.copy(), table.weight.copy()
        weight[row] += counts
        error = np.where(seen, reward, 0.0) - target[row]
        target[row] += np.where(seen, error * counts / np.maximum(weight[row], 1e-300), 0.0)
        return RewardTable(table.inputs, target, weight, table.total + float(counts.mean()))

    def _with_row(self, x: FloatArray, limit: int) -> "RewardTable":
        gone, none = int(len(self.inputs) >= limit), np.zeros((1, self.target.shape[1]))
        return RewardTable(
            inputs=np.concatenate([self.inputs[gone:], x[None]]),
            target=np.concatenate([self.target[gone:], none]),
            weight=np.concatenate([self.weight[gone:], none]),
            total=self.total - float(self.weight[:gone].mean(axis=1).sum()),
        )


def loss_and_gradient(
    weights: Weights, start: Weights, data: RewardTable, *, ridge: float, scale: float
) -> tuple[float, list[FloatArray]]:
    """L(θ) = scale·Σ ½(f − r)² + λ/2 ‖θ − θ_0‖², up to a constant, and ∇L; the sum runs over what was seen."""
    front = _activations(weights, data.inputs)
    root = np.sqrt(front[-1].shape[1])
    error = root * (front[-1] @ weights[-1].T) - data.target  # (n, V)
    slope = scale * data.weight * error
    loss = 0.5 * float((slope * error).sum())
    slope = root * slope
    gradient = []
    for layer in range(len(weights) - 1, -1, -1):
        away = weights[layer] - start[layer]
        loss += 0.5 * ridge * float((away * away).sum())
        gradient.append(slope.T @ front[layer] + ridge * away)
        if layer:
            slope = (slope @ weights[layer]) * (front[layer] > 0)
    return loss, gradient[::-1]


def descend(
    weights: Weights, start: Weights, data: RewardTable, *, ridge: float, scale: float, rate: float, steps: int
) -> tuple[Weights, float]:
    """J gradient steps of size η (line 14). A run that raises the loss is undone and repeated with half the step.

    The printed loss adds all slots up, so its curvature grows with t and any fixed η diverges in the end.
    Returns the new weights and the step size that worked.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a diverging try is thrown away
        before, first = loss_and_gradient(weights, start, data, ridge=ridge, scale=scale)
        for _ in range(60):
            trial, gradient = weights, first
            for _ in range(steps):
                trial = tuple(theta - rate * slope for theta, slope in zip(trial, gradient, strict=True))
                after, gradient = loss_and_gradient(trial, start, data, ridge=ridge, scale=scale)
            if np.isfinite(after) and after <= before:
                return trial, rate
            rate *= 0.5
    return weights, rate


# ---- Line 13: the confidence matrix Z_t = λI + Σ g gᵀ/w, as a diagonal or in full ----


@dataclass(frozen=True, eq=False)
class DiagonalConfidence:
    """Only the diagonal of Z, one entry per weight; a factored gradient needs no p-vector."""

    diagonal: tuple[FloatArray, ...]  # L arrays of the shapes of θ
    ridge: float  # λ
    width: int  # w

    @classmethod
    def start(cls, shapes: list[tuple[int, ...]], *, ridge: float, width: int) -> "DiagonalConfidence":
        """Z_0 = λI."""
        return cls(tuple(np.full(shape, ridge) for shape in shapes), ridge, width)

    @property
    def log_determinant(self) -> float:
        """log(det Z / det λI)."""
        return float(sum(np.log(layer / self.ridge).sum() for layer in self.diagonal))

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        total: FloatArray | float = 0.0
        for layer, (back, front) in enumerate(zip(gradient.back, gradient.front, strict=True)):
            inverse = 1.0 / self.diagonal[layer]
            if layer == 0:  # back has n rows, front K columns
                total = np.vecdot(back * back, (front * front) @ inverse.T)
            else:
                total += np.vecdot((back * back) @ inverse, front * front)
        return np.asarray(total / self.width)

    def updated(self, gradient: Gradient) -> "DiagonalConfidence":
        """Z + g gᵀ/w for a single gradient."""
        squared = (np.outer(b[0] ** 2, f[0] ** 2) for b, f in zip(gradient.back, gradient.front, strict=True))
        more = (layer + new / self.width for layer, new in zip(self.diagonal, squared, strict=True))
        return replace(self, diagonal=tuple(more))


@dataclass(frozen=True, eq=False)
class ExactConfidence:
    """All of Z⁻¹, changed by rank one a slot (Sherman and Morrison)."""

    inverse: FloatArray  # Z⁻¹ (p, p)
    log_determinant: float  # log(det Z / det λI)
    width: int  # w

    @classmethod
    def start(cls, shapes: list[tuple[int, ...]], *, ridge: float, width: int) -> "ExactConfidence":
        """Z_0 = λI."""
        p = sum(rows * columns for rows, columns in shapes)
        if p > MOST_EXACT:
            raise ConfigError(
                f'confidence = "exact" takes at most {MOST_EXACT} weights (got {p}); lower width, or take "diagonal"'
            )
        return cls(np.eye(p) / ridge, 0.0, width)

    def squared_width(self, gradient: Gradient) -> FloatArray:
        """gᵀZ⁻¹g/w for each of n gradients: (n,)."""
        g = gradient.dense()
        return np.asarray(np.einsum("np,np->n", g @ self.inverse, g) / self.width)

    def updated(self, gradient: Gradient) -> "ExactConfidence":
        """Z + g gᵀ/w for a single gradient."""
        squared, turned = float(self.squared_width(gradient)[0]), self.inverse @ gradient.dense()[0]
        inverse = self.inverse - np.outer(turned, turned) / (self.width * (1.0 + squared))
        return ExactConfidence(inverse, self.log_determinant + float(np.log1p(squared)), self.width)


def theory_gamma(slot: int, log_determinant: float, config: PaperModeConfig) -> float:
    """γ_t as printed below eq. (u_node), with S = C₁ = C₂ = C₃ = 1; it needs ηwλ ≤ 1."""
    w, L, lam, eta, J = config.width, config.layers, config.ridge, config.learning_rate, config.steps
    shrink = 1.0 - eta * w * lam
    if shrink < 0:
        raise ConfigError(
            f'gamma = "theory" needs learning_rate · width · ridge ≤ 1 (got {eta * w * lam:.4g}); '
            f'take a learning_rate of at most {1 / (w * lam):.3g}, or gamma = "constant"'
        )
    t, thin = float(slot), w ** (-1 / 6) * np.sqrt(np.log(w))
    outer = np.sqrt(1.0 + thin * L**4 * t ** (7 / 6) * lam ** (-7 / 6))
    inner = log_determinant + thin * L**4 * t ** (5 / 3) * lam ** (-1 / 6) - 2.0 * np.log(config.delta)
    bias = shrink ** (J / 2) * np.sqrt(t / lam)
    bias += thin * L ** (7 / 2) * t ** (5 / 3) * lam ** (-5 / 3) * (1.0 + np.sqrt(t / lam))
    return float(outer * (config.exploration * np.sqrt(inner) + np.sqrt(lam)) + (lam + t * L) * bias)


# ---- The loop ----


@dataclass(frozen=True, eq=False)
class Belief:
    """What is known of the rewards: the network, its confidence and the data behind them."""

    start: Weights  # θ_0: L matrices (w, K), (w, w) …, (V, w)
    theta: Weights  # θ_t, the same shapes
    Z: DiagonalConfidence | ExactConfidence  # Z_t
    rewards: RewardTable  # the slots told, m distinct blends
    t: int  # how many slots were told
    rate: float  # η, halved where the printed step would diverge


@dataclass(frozen=True, eq=False)
class PaperState:
    """S_t: what is known, and the tree of n nodes."""

    belief: Belief
    tree: PartitionTree  # H


def first_belief(sizes: Sizes, config: PaperModeConfig, rng: np.random.Generator) -> Belief:
    """Line 1: θ_0 and Z_0 = λI."""
    K, V = sizes.experts, sizes.tasks
    if config.gamma == "theory":
        theory_gamma(0, 0.0, config)  # refuses settings under which it is not defined
    theta = initial_weights(inputs=K, width=config.width, outputs=V, layers=config.layers, rng=rng)
    form = ExactConfidence if config.confidence == "exact" else DiagonalConfidence
    Z = form.start([matrix.shape for matrix in theta], ridge=config.ridge, width=config.width)
    rewards = RewardTable(np.zeros((0, K)), np.zeros((0, V)), np.zeros((0, V)), 0.0)
    return Belief(theta, theta, Z, rewards, 0, config.learning_rate)


def bound(belief: Belief, config: PaperModeConfig, blends: FloatArray, mix: TaskMix) -> tuple[FloatArray, FloatArray]:
    """Line 6, eq. (u_node): the terms ψᵀf and γ√(gᵀZ⁻¹g/w) of blends (n, K), each (n,)."""
    mean, g = value_and_gradient(belief.theta, unit(blends), mix)
    gamma = config.exploration
    if config.gamma == "theory":
        gamma = theory_gamma(belief.t, belief.Z.log_determinant, config)
    return mean, gamma * np.sqrt(belief.Z.squared_width(g))


def learned(
    belief: Belief, config: PaperModeConfig, mix: TaskMix, blend: Blend, reward: Reward, counts: Counts
) -> Belief:
    """Lines 13 and 14: Z with g at θ_{t−1}, then J steps on L(θ)."""
    x = unit(blend[None])
    Z = belief.Z.updated(value_and_gradient(belief.theta, x, mix)[1])  # line 13
    rewards = belief.rewards.added(x[0], reward, counts, limit=config.memory)
    scale = 1.0 if config.loss == "sum" else 1.0 / max(rewards.total, 1.0)
    theta, rate = descend(  # line 14
        belief.theta, belief.start, rewards,
        ridge=config.ridge * scale, scale=scale, rate=belief.rate, steps=config.steps,
    )  # fmt: skip
    return replace(belief, theta=theta, Z=Z, rewards=rewards, rate=rate)


@dataclass(frozen=True)
class Algorithm1:
    """The paper's loop over a `PaperState`."""

    sizes: Sizes
    config: PaperModeConfig
    panels = False

    def start(self, rng: np.random.Generator) -> PaperState:
        """Line 1: θ_0, Z_0 = λI, H = {[0, 1]^K}."""
        belief = first_belief(self.sizes, self.config, rng)
        return PaperState(belief, PartitionTree.root(self.sizes.experts, point=self._point))

    def choose(self, state: PaperState, asked: Question, rng: np.random.Generator) -> Decision:  # noqa: ARG002
        """Lines 3 to 7: the active leaf of highest upper confidence bound. ψ_t (line 3) is what was asked."""
        leaves = state.tree.active_leaves  # line 4: N_t
        blends = state.tree.blend[leaves]  # line 5: {x_{h,i}}
        mean, width = bound(state.belief, self.config, blends, asked.task_mix)  # line 6
        granularity = self.config.nu * self.config.rho ** state.tree.depth[leaves].astype(np.float64)  # ν₁ρ^h
        best = first_best(mean + granularity + width)  # line 7
        node = int(leaves[best])
        terms = Terms(
            mean=float(mean[best]), granularity=float(granularity[best]), uncertainty=float(width[best]),
            node=node, depth=int(state.tree.depth[node]), candidates=len(leaves),
        )  # fmt: skip
        return asked.decided(blends[best], (terms,))

    def learn(
        self, state: PaperState, decision: Decision, rewards: FloatArray, counts: FloatArray, rng: np.random.Generator
    ) -> PaperState:
        """Lines 8 to 14: the reward of line 8 is r = f*(x) plus noise; count, expand, update Z, train."""
        config, terms, belief = self.config, decision.terms[0], replace(state.belief, t=state.belief.t + 1)
        tree = state.tree.visited(terms.node)  # line 9
        tau = expansion_threshold(terms.depth, belief.t, config)
        if tree.leaf[terms.node] and tree.visits[terms.node] >= tau:  # line 10; late, the leaf may be expanded already
            tree = tree.expanded(terms.node, rng=rng, point=self._point)  # lines 11 and 12
        belief = learned(belief, config, decision.task_mix, decision.blend, rewards[0], counts[0])  # lines 13 and 14
        return PaperState(belief, tree)

    def warm_start(self, state: PaperState, blend: Blend, reward: Reward, counts: Counts) -> PaperState:
        """Lines 13 and 14 for a reward from elsewhere, as if all tasks had been equally frequent."""
        even = np.full(len(reward), 1.0 / len(reward))
        return replace(state, belief=learned(state.belief, self.config, even, blend, reward, counts))

    def _point(self, low: FloatArray, high: FloatArray) -> Blend:
        """Find a point of the box that sums to 1 (1a), with the B largest weights kept (1b)."""
        point = proportional_point if self.config.representative == "proportional" else corner_point
        return keep_largest(point(low, high), self.sizes.max_active)

    def expected(self, state: PaperState) -> FloatArray:
        """F at the blends of the active nodes: (n, V)."""
        return predict(state.belief.theta, unit(state.tree.blend[state.tree.active]))
