"""A Gaussian process over pooled arms, with the posterior of a fixed set of points kept up to date.

Each task's reward is one draw f_v of the same process, k(x, y) = m² + s²·Matérn₅⸝₂(‖x − y‖/ℓ) around 1/2. With
A_v = (K + D_v)⁻¹ over the arms, D_v their noise, the posterior at a point with kernel row k is

    mean_v = 1/2 + kᵀα_v        variance_v = k(x, x) − kᵀA_v k

One more reward at arm i with noise variance d is a rank-one change with b_v = e_i − A_v k_i:

    A_v += b bᵀ/(d + variance_v(i))       α_v += b·(r_v − mean_v(i))/(d + variance_v(i))

so a slot costs O(arms² + points·arms), however many were told. One matrix A serves all tasks (M = 1) until a slot
leaves one unseen or counts them differently (then M = V).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import StateError
from tanbr.router.config import DefaultModeConfig
from tanbr.router.fit import best_fit, best_lift, tasks_correlation
from tanbr.router.kernel import CENTRE, correlation, matern, share_slope, share_value
from tanbr.types import Blend, Counts, FloatArray, Reward

FIRST_ARMS = 16  # room at first, doubled when it is full
TRUST = 16.0  # differences of rewards that the first noise is worth


@dataclass(frozen=True, eq=False)
class PosteriorState:
    """What a posterior over N points knows from m arms; M matrices, 1 or V."""

    width: float  # ℓ
    noise: float  # variance of one request's reward
    variance: float  # s²
    correlation: float  # of two tasks' rewards
    lift: float  # how much more a task's own expert alone earns
    arms: FloatArray  # (m, K) blends told
    visits: FloatArray  # (m,) slots told at each arm
    weights: FloatArray  # (m, V) requests behind each arm's mean reward
    means: FloatArray  # (m, V)
    scatter: FloatArray  # (2,) within-arm squared error and its degrees of freedom
    inverse: FloatArray  # (M, m, m) A
    alpha: FloatArray  # (m, V)
    points: FloatArray  # (N, K)
    cross: FloatArray  # (N, m) kernel of points and arms
    mean: FloatArray  # (N, V)
    gain: FloatArray  # (N, M) kᵀAk


class PooledPosterior:
    """Posterior of V rewards at a set of points, from the rewards pooled in at most `config.arms` arms."""

    def __init__(self, points: FloatArray, *, tasks: int, config: DefaultModeConfig) -> None:
        size, (count, experts) = min(FIRST_ARMS, config.arms), points.shape
        self.config, self.tasks = config, tasks
        fixed = {"none": None, "proportional": None, "even": np.full(experts, 1.0 / experts)}
        self._shares = fixed[config.baseline] if isinstance(config.baseline, str) else np.array(config.baseline)
        self.width, self.noise = config.width, config.noise**2  # ℓ, variance of one request's reward
        self.variance = config.variance  # s²
        self.correlation = config.correlation  # of two tasks' rewards
        self.lift = config.own_lift  # how much more a task's own expert alone earns than none of it
        self.used = 0  # arms in use, m; tables by arm have room for more
        self.arms = np.zeros((size, experts))
        self.norms = np.zeros(size)  # ‖arm‖²
        self.visits = np.zeros(size)
        self.weights, self.means = np.zeros((2, size, tasks))
        self.scatter = np.zeros(2)
        self.inverse = np.zeros((1, size, size))
        self.alpha = np.zeros((size, tasks))
        self.points = points
        self.cross = np.zeros((count, size))
        self.mean = np.zeros((count, tasks)) + self.expected(points)
        self.gain = np.zeros((count, 1))

    @property
    def prior(self) -> float:
        """k(x, x)."""
        return self.config.mean_variance + self.variance

    def expected(self, points: FloatArray) -> FloatArray | float:
        """Prior mean of the rewards at points (n, K): (n, V), or one number for all."""
        return CENTRE + self.lift * self.feature(points)

    def feature(self, points: FloatArray) -> FloatArray | float:
        """What the lift multiplies, at points (n, K): (n, V), or 0 where no blend is expected above another."""
        if own := list(self.config.own_experts):
            return np.asarray(share_value(points[:, own]) - share_value(np.array(1.0 / points.shape[1])))
        if self._shares is None:
            return 0.0
        fall = (share_value(points) - share_value(self._shares)) @ self._shares  # 0 at the baseline, below it elsewhere
        return np.repeat(fall[:, None], self.tasks, axis=1)

    def kernel(self, points: FloatArray) -> FloatArray:
        """Kernel of points (n, K) with the arms in use: (n, used)."""
        return self._kernel(self._distance(points))

    def _distance(self, points: FloatArray) -> FloatArray:
        """Scaled distance √5‖x − arm‖/ℓ of points (n, K) and the arms in use: (n, used)."""
        squared = points @ self.arms[: self.used].T
        squared *= -2.0
        squared += self.norms[: self.used]
        squared += np.einsum("nk,nk->n", points, points)[:, None]
        np.maximum(squared, 0.0, out=squared)
        squared *= 5.0 / self.width**2
        return np.sqrt(squared, out=squared)

    def _kernel(self, r: FloatArray) -> FloatArray:
        return np.asarray(self.config.mean_variance + self.variance * matern(r))

    def slope_of_bound(self, points: FloatArray, mix: FloatArray, beta: float) -> FloatArray:
        """Gradient of the bound ψᵀmean + β·deviation at points (n, K): (n, K)."""
        used, width = self.used, self.width
        r = self._distance(points)
        fade = np.exp(-r)
        rows = self._kernel(r)  # (n, used)
        turned = rows @ self.inverse[:, :used, :used]  # (M, n, used)
        gain = np.einsum("gnm,nm->ng", turned, rows)
        variance, parts = self._mixed(mix, np.maximum(self.prior - gain, 1e-12))
        push = np.einsum("gnm,ng->nm", turned, parts) * (beta / np.sqrt(variance))[:, None]
        pull = (self.alpha[:used] @ mix - push) * ((1.0 + r) * fade)  # d bound / d row · its fall with distance
        pull *= -5.0 * self.variance / (3.0 * width * width)
        slope = points * pull.sum(axis=1)[:, None] - pull @ self.arms[:used]
        for task, expert in enumerate(self.config.own_experts):
            slope[:, expert] += mix[task] * self.lift * share_slope(points[:, expert])
        if self._shares is not None and not self.config.own_experts:
            slope += self.lift * self._shares * share_slope(points)
        return np.asarray(slope)

    def _mixed(self, mix: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Variance of ψᵀr from the tasks' variances (n, M), and its derivative by each of them (n, M)."""
        own, shared = (1.0 - self.correlation) * (mix * mix), self.correlation * mix
        if variance.shape[1] == 1:
            parts = np.full(variance.shape, own.sum() + shared.sum())
            return variance[:, 0] * parts[:, 0], parts
        deviation = np.sqrt(variance)
        parts = own + shared * (deviation @ mix)[:, None] / deviation
        return np.asarray((parts * variance).sum(axis=1)), parts

    def nearest(self, blend: Blend) -> tuple[int, float]:
        """Find the arm nearest to a blend and its distance; (-1, inf) without arms."""
        if not self.used:
            return -1, float("inf")
        offset = self.arms[: self.used] - blend
        squared = np.einsum("ij,ij->i", offset, offset)
        arm = int(squared.argmin())
        return arm, float(np.sqrt(squared[arm]))

    def variance_of(self, mix: FloatArray, gain: FloatArray) -> FloatArray:
        """Variance of ψᵀr where kᵀAk is `gain` (n, M): (n,). Two tasks' rewards are taken to correlate alike."""
        return self.mixed_variance(mix, self.prior - gain)

    def mixed_variance(self, mix: FloatArray, variance: FloatArray) -> FloatArray:
        """Variance of ψᵀr from the tasks' variances (n, M): (n,)."""
        return self._mixed(mix, np.maximum(variance, 1e-12))[0]

    def prior_of(self, mix: FloatArray) -> float:
        """Variance of ψᵀr before anything was told."""
        return self.prior * ((1.0 - self.correlation) * float(mix @ mix) + self.correlation)

    def _gain(self, rows: FloatArray) -> FloatArray:
        used = self.used
        return np.stack([np.einsum("ij,ij->i", rows @ A[:used, :used], rows) for A in self.inverse], axis=1)

    def observe(self, blend: Blend, reward: Reward, counts: Counts) -> float:
        """Take in one reward (V,) with its counts (0 where unseen): how much there was to learn from it.

        That is how unsure its blend was before, its deviation as a share of the prior's, the mean over the seen tasks:
        1 at first, √(noise/(n·prior)) or less once the blend has been told n times.
        """
        seen = counts > 0
        if not seen.any():
            return 0.0
        arm = self._arm(blend)
        if len(self.inverse) == 1 and self.tasks > 1 and (counts != counts[0]).any():
            self.inverse = np.repeat(self.inverse, self.tasks, axis=0)
            self.gain = np.repeat(self.gain, self.tasks, axis=1)
        groups, used = len(self.inverse), self.used
        row = self.kernel(self.arms[arm : arm + 1])[0]  # (used,)
        shift = -(self.inverse[:, :used, :used] @ row)  # b (M, used)
        shift[:, arm] += 1.0
        spread = np.maximum(shift @ row, 0.0)  # posterior variance at the arm (M,)
        weight = counts[:groups] if groups > 1 else counts[:1]
        scale = np.where(weight > 0, weight / (self.noise + weight * spread), 0.0)  # 1/(d + variance) (M,)
        centre = self.expected(self.arms[arm : arm + 1])
        error = np.where(seen, reward - np.ravel(centre) - row @ self.alpha[:used], 0.0) * scale  # (V,)

        for group in np.flatnonzero(scale):
            self.inverse[group, :used, :used] += np.outer(scale[group] * shift[group], shift[group])
        self.alpha[:used] += (shift * error[:, None]).T if groups > 1 else np.outer(shift[0], error)
        reach = self.cross[:, :used] @ shift.T  # (N, M)
        self.mean += reach * error
        self.gain += reach * reach * scale
        self._pool(arm, reward, counts, seen)
        return float(np.sqrt(spread[seen if groups > 1 else slice(None)] / self.prior).mean())

    def predicted(self, blend: Blend, counts: Counts) -> tuple[FloatArray, FloatArray]:
        """Mean (V,) and variance (V,) of the rewards to come from a blend, their noise included."""
        mean, gain = self.at(blend[None])
        return mean[0], np.maximum(self.prior - gain[0], 0.0) + self.noise / np.maximum(counts, 1e-300)

    def forget_tasks(self, tasks: NDArray[np.intp]) -> None:
        """Drop all rewards of some tasks, and the arms that only they were told at."""
        self.weights[:, tasks] = 0.0
        self.means[:, tasks] = 0.0
        self.scatter[0] = self.noise * self.scatter[1]  # a change is no noise
        self._keep(np.flatnonzero(self.weights[: self.used].any(axis=1)))

    def _pool(self, arm: int, reward: Reward, counts: Counts, seen: NDArray[np.bool_]) -> None:
        before, total = self.weights[arm], self.weights[arm] + counts
        step = np.where(seen, (reward - self.means[arm]), 0.0)
        both = seen & (before > 0)
        self.scatter += (before * counts / np.maximum(total, 1e-300) * step * step)[both].sum(), both.sum()
        self.means[arm] += step * counts / np.maximum(total, 1e-300)
        self.weights[arm] = total
        self.visits[arm] += 1.0

    def _arm(self, blend: Blend) -> int:
        arm, distance = self.nearest(blend)
        if distance <= 1e-9:
            return arm
        if self.used >= self.config.arms:
            self._forget_least()
        if self.used == len(self.arms):
            self._make_room(min(2 * self.used, self.config.arms))
        arm, self.used = self.used, self.used + 1
        self.arms[arm] = blend
        self.norms[arm] = blend @ blend
        alike = correlation(self.points, self.arms[arm : arm + 1], self.width)[:, 0]
        self.cross[:, arm] = self.config.mean_variance + self.variance * alike
        return arm

    def _make_room(self, size: int) -> None:
        """Give every table by arm this many rows, and matrices as many columns."""
        used, (count, matrices) = self.used, self.gain.shape
        for name in ("arms", "norms", "visits", "weights", "means", "alpha"):
            table = getattr(self, name)
            grown = np.zeros((size, *table.shape[1:]))
            grown[:used] = table[:used]
            setattr(self, name, grown)
        inverse, cross = np.zeros((matrices, size, size)), np.zeros((count, size))
        inverse[:, :used, :used], cross[:, :used] = self.inverse[:, :used, :used], self.cross[:, :used]
        self.inverse, self.cross = inverse, cross

    def _forget_least(self) -> None:
        """Drop the quarter of the arms with the least behind them, the oldest first among equals."""
        behind = self.weights[: self.used].sum(axis=1)
        self._keep(np.sort(np.argsort(behind + np.arange(self.used) * 1e-9, kind="stable")[self.used // 4 :]))

    def _keep(self, kept: NDArray[np.intp]) -> None:
        """Go on with these arms only."""
        for table in (self.arms, self.norms, self.visits, self.weights, self.means):
            table[: len(kept)] = table[kept]
            table[len(kept) :] = 0.0
        self.used = len(kept)
        self.rebuild()

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (n, V) and gain (n, M) at other points (n, K)."""
        kernel = self.kernel(points)
        return self.expected(points) + kernel @ self.alpha[: self.used], self._gain(kernel)

    def mean_at(self, points: FloatArray) -> FloatArray:
        """Mean (n, V) at other points (n, K)."""
        return np.asarray(self.expected(points) + self.kernel(points) @ self.alpha[: self.used])

    def contrast(self, points: FloatArray, rows: FloatArray, gain: FloatArray, other: Blend) -> FloatArray:
        """Variance (n, M) of the difference to another blend's reward, at points (n, K) with kernel rows (n, used)."""
        row = self.kernel(other[None])  # (1, used)
        alike = self.config.mean_variance + self.variance * correlation(points, other[None], self.width)
        shared = alike - rows @ (self.inverse[:, : self.used, : self.used] @ row[0]).T
        return np.maximum((self.prior - gain) + (self.prior - self._gain(row)) - 2.0 * shared, 0.0)

    def replace_points(self, rows: NDArray[np.intp], points: FloatArray) -> None:
        """Put new points (n, K) into the given rows."""
        self.points[rows] = points
        kernel = self.kernel(points)
        self.cross[rows, : self.used] = kernel
        self.mean[rows] = self.expected(points) + kernel @ self.alpha[: self.used]
        self.gain[rows] = self._gain(kernel)

    def start_over(self) -> None:
        """Go back to the first kernel; the noise stays as it was fitted."""
        self.width, self.variance, self.correlation = self.config.width, self.config.variance, self.config.correlation
        self.lift = self.config.own_lift

    def rebuild(self) -> None:
        """Compute A, α and the points' posterior from the pooled rewards."""
        used = self.used
        kernel = self.kernel(self.arms[:used])
        weights = self.weights[:used]
        groups = [weights[:, 0]] if (weights == weights[:, :1]).all() else list(weights.T)
        self.inverse = np.zeros((len(groups), *self.inverse.shape[1:]))
        self.alpha[:] = 0.0
        offset = self.means[:used] - self.expected(self.arms[:used])  # (used, V)
        for group, weight in enumerate(groups):
            root = np.sqrt(weight / self.noise)
            inner = np.eye(used) + kernel * root[:, None] * root
            inverse = np.linalg.inv(inner) * root[:, None] * root
            self.inverse[group, :used, :used] = 0.5 * (inverse + inverse.T)
            tasks = slice(None) if len(groups) == 1 else slice(group, group + 1)
            self.alpha[:used, tasks] = self.inverse[group, :used, :used] @ offset[:, tasks]
        self.cross[:, :used] = self.kernel(self.points)
        self.mean = self.expected(self.points) + self.cross[:, :used] @ self.alpha[:used]
        self.gain = self._gain(self.cross[:, :used])

    def refit(self) -> None:
        """Choose kernel width, noise, variance and lift by marginal likelihood, then rebuild."""
        if self.used < 3:
            return
        self.width, self.noise, self.variance, self.lift = best_fit(self)
        self.correlation = tasks_correlation(self, self.noise)
        self.rebuild()

    def refit_early(self) -> None:
        """Correct the noise, by how far rewards of one blend differ, the lift, and the correlation, but upwards only.

        What the noise was counts as `TRUST` such differences. Few rewards may hide what tasks have in common, and too
        low a correlation ends the search for better blends; the kernel waits for `refit`.
        """
        within, freedom = self.scatter
        self.noise = float((TRUST * self.noise + within) / (TRUST + freedom))
        self.lift = best_lift(self)
        self.correlation = max(self.correlation, tasks_correlation(self, self.noise))
        self.rebuild()

    @property
    def state(self) -> PosteriorState:
        """What is known, as one value."""
        used = self.used
        return PosteriorState(
            width=self.width, noise=self.noise, variance=self.variance, correlation=self.correlation,
            lift=self.lift, arms=self.arms[:used].copy(), visits=self.visits[:used].copy(),
            weights=self.weights[:used].copy(), means=self.means[:used].copy(), scatter=self.scatter.copy(),
            alpha=self.alpha[:used].copy(),
            inverse=self.inverse[:, :used, :used].copy(), cross=self.cross[:, :used].copy(),
            points=self.points.copy(), mean=self.mean.copy(), gain=self.gain.copy(),
        )  # fmt: skip

    def restore(self, state: PosteriorState) -> None:
        """Undo to what `state` was."""
        if min(state.width, state.noise, state.variance) <= 0 or (state.weights < 0).any():
            raise StateError("widths, variances and weights must not be negative")
        self.width, self.noise = state.width, state.noise
        self.variance, self.correlation, self.lift = state.variance, state.correlation, state.lift
        self.used, self.gain = 0, state.gain.copy()
        size = min(max(FIRST_ARMS, 1 << (len(state.arms) - 1).bit_length()), self.config.arms)
        self._make_room(max(size, len(state.arms)))
        self.used = used = len(state.arms)
        for name in ("arms", "visits", "weights", "means", "alpha"):
            getattr(self, name)[:used] = getattr(state, name)
        self.norms[:used] = [arm @ arm for arm in self.arms[:used]]
        self.inverse[:, :used, :used], self.cross[:, :used] = state.inverse, state.cross
        self.scatter, self.points, self.mean = state.scatter.copy(), state.points.copy(), state.mean.copy()
