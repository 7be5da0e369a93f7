"""The posterior of the default router: a Gaussian process over pooled arms, at a fixed number of points.

Each task's reward is one draw f_v of the same process, k(x, y) = m² + s²·Matérn₅⸝₂(‖x − y‖/ℓ) around a prior mean. With
A_v = (K + D_v)⁻¹ over the arms, D_v their noise, the posterior at a point with kernel row k is

    mean_v = prior mean_v + kᵀα_v        variance_v = k(x, x) − kᵀA_v k

One more reward at arm i with noise variance d is a rank-one change with b_v = e_i − A_v k_i:

    A_v += b bᵀ/(d + variance_v(i))       α_v += b·(r_v − mean_v(i))/(d + variance_v(i))

so a slot costs O(arms² + points·arms), however many were told. One matrix A serves all tasks (M = 1) until a slot
leaves one unseen or counts them differently (then M = V). A `Posterior` is never written to: each step makes a new one.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import StateError
from tanbr.types import Blend, Counts, FloatArray, Reward, TaskMix, lock

CENTRE = 0.5  # prior mean of a reward in [0, 1]
ARMS = 192  # most blends whose rewards are pooled: so a slot costs 1 to 2 ms at any K and t
MEAN_VARIANCE = 0.04  # m²: tasks earn .5 ± .2 on average, as the tasks of GLUE and the generated ones do
CORRELATION = 0.25  # of two tasks' rewards: too low a value ends the search, and an estimate earned no more
WIDTH = 0.5  # ℓ before the first fit: rather too narrow, which explores, than too wide, which does not
WIDTHS = (0.42, 0.55, 0.7, 0.85, 1.0, 1.4, 2.0)  # that a fit chooses from; experts are √2 apart, and 2 is nearly linear
NOISES = (0.0625, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0)  # times the noise as it was, that a fit chooses from
LEAST = 0.02  # weight below which the prior mean no longer steepens: a smaller share is not worth a merge
SAME = 1e-9  # two blends nearer than this (Euclid) are one arm: they differ by rounding
LIFT_DEVIATION = 0.2  # of the lift around what was expected of it: from .4, both 0 and .8 are two deviations away
CAUTION = 2.0  # standard errors by which the lift must lie below what was expected to count as lower
ROOT5 = float(np.sqrt(5.0))


@dataclass(frozen=True, eq=False)
class Prior:
    """What is known before any reward; it never changes."""

    tasks: int  # V
    noise: float  # variance of one request's reward
    variance: float  # s²
    variances: tuple[float, ...]  # s² that a fit chooses from
    lift: float  # how much more a task's own expert alone is expected to earn than none of it
    own: FloatArray | None = None  # (V, K) how likely each expert is to be a task's own; the rows sum to 1. Where all
    # are as likely, rewards are expected to fall with the distance from the even blend; where it is None, nowhere


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known at N points from m arms; M matrices, 1 or V. Its arrays are read-only."""

    width: float  # ℓ
    noise: float  # variance of one request's reward
    variance: float  # s²
    lift: float  # how much more a task's own expert alone earns
    arms: FloatArray  # (m, K) blends told
    visits: FloatArray  # (m,) slots told at each arm
    weights: FloatArray  # (m, V) requests behind each arm's mean reward
    means: FloatArray  # (m, V)
    scatter: FloatArray  # (2,) squared error within arms and its degrees of freedom
    inverse: FloatArray  # (M, m, m) A
    alpha: FloatArray  # (m, V)
    points: FloatArray  # (N, K)
    cross: FloatArray  # (N, m) kernel of points and arms
    mean: FloatArray  # (N, V)
    gain: FloatArray  # (N, M) kᵀAk

    def __post_init__(self) -> None:
        if min(self.width, self.noise, self.variance) <= 0 or (self.weights < 0).any():
            raise StateError("widths and variances must be above 0, weights not below")
        lock(self)

    @property
    def prior(self) -> float:
        """k(x, x)."""
        return MEAN_VARIANCE + self.variance

    def kernel(self, points: FloatArray, others: FloatArray | None = None) -> FloatArray:
        """Kernel of points (n, K) with the arms, or with other points (m, K): (n, m)."""
        return MEAN_VARIANCE + self.variance * correlation(points, self.arms if others is None else others, self.width)

    def nearest(self, blend: Blend) -> tuple[int, float]:
        """Find the arm nearest to a blend and its distance; (-1, inf) without arms."""
        if not len(self.arms):
            return -1, float("inf")
        offset = self.arms - blend
        squared = np.einsum("ij,ij->i", offset, offset)
        arm = int(squared.argmin())
        return arm, float(np.sqrt(squared[arm]))

    def mixed(self, mix: TaskMix, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Variance of ψᵀr (n,) from the tasks' variances (n, M), and its derivative by each (n, M)."""
        variance = np.maximum(variance, 1e-12)
        own, shared = (1.0 - CORRELATION) * (mix * mix), CORRELATION * mix
        if variance.shape[1] == 1:
            parts = np.full(variance.shape, own.sum() + shared.sum())
            return variance[:, 0] * parts[:, 0], parts
        deviation = np.sqrt(variance)
        parts = own + shared * (deviation @ mix)[:, None] / deviation
        return np.asarray((parts * variance).sum(axis=1)), parts


def matern(r: FloatArray) -> FloatArray:
    """Matérn-5/2 correlation at r = √5·distance/width."""
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


def distance(left: FloatArray, right: FloatArray, width: float) -> FloatArray:
    """Scaled distance √5‖x − y‖/ℓ of blends (n, K) and (m, K): (n, m)."""
    squared = left @ right.T
    squared *= -2.0
    squared += np.einsum("mk,mk->m", right, right)
    squared += np.einsum("nk,nk->n", left, left)[:, None]
    np.maximum(squared, 0.0, out=squared)
    return np.asarray(np.sqrt(squared, out=squared) * (ROOT5 / width))


def correlation(left: FloatArray, right: FloatArray, width: float) -> FloatArray:
    """Matérn-5/2 correlation of blends (n, K) and (m, K): (n, m)."""
    return matern(distance(left, right, width))


def share_value(weight: FloatArray) -> FloatArray:
    """How much of what it can add an expert is expected to add at a weight: 0 at 0, 1 at 1, a logarithm above `LEAST`.

    Σ_v ψ_v·share_value(x_v) is highest, over the simplex, where x = ψ (shares below `LEAST` fall away).
    """
    whole = 1.0 - np.log(LEAST)
    return np.asarray((np.log(np.maximum(weight, LEAST) / LEAST) + np.minimum(weight / LEAST, 1.0)) / whole)


def share_slope(weight: FloatArray) -> FloatArray:
    """Derivative of `share_value`."""
    return np.asarray(1.0 / (np.maximum(weight, LEAST) * (1.0 - np.log(LEAST))))


def feature(prior: Prior, points: FloatArray) -> FloatArray:
    """What the lift multiplies in the prior mean, at points (n, K): (n, V); 0 where no blend is expected to be best."""
    if prior.own is None:
        return np.zeros((len(points), prior.tasks))
    above = share_value(points) - share_value(np.array(1.0 / points.shape[1]))  # (n, K), 0 at the even blend
    return np.asarray(above @ prior.own.T)


def expected(prior: Prior, lift: float, points: FloatArray) -> FloatArray:
    """Prior mean of the rewards at points (n, K): (n, V)."""
    return CENTRE + lift * feature(prior, points)


def start(prior: Prior, points: FloatArray) -> Posterior:
    """Make the posterior of points (N, K) before any reward."""
    (N, K), V = points.shape, prior.tasks
    return Posterior(
        width=WIDTH, noise=prior.noise, variance=prior.variance, lift=prior.lift,
        arms=np.zeros((0, K)), visits=np.zeros(0), weights=np.zeros((0, V)), means=np.zeros((0, V)),
        scatter=np.zeros(2), inverse=np.zeros((1, 0, 0)), alpha=np.zeros((0, V)), points=points.copy(),
        cross=np.zeros((N, 0)), mean=expected(prior, prior.lift, points), gain=np.zeros((N, 1)),
    )  # fmt: skip


def at(prior: Prior, state: Posterior, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean (n, V) and gain (n, M) at any points (n, K)."""
    rows = state.kernel(points)
    return expected(prior, state.lift, points) + rows @ state.alpha, _gain(state.inverse, rows)


def _gain(inverse: FloatArray, rows: FloatArray) -> FloatArray:
    return np.stack([np.einsum("ij,ij->i", rows @ A, rows) for A in inverse], axis=1)


def contrast(state: Posterior, points: FloatArray, gain: FloatArray, other: Blend) -> FloatArray:
    """Variance (n, M) of the difference to another blend's reward, at points (n, K) whose gain is (n, M)."""
    row = state.kernel(other[None])  # (1, m)
    shared = state.kernel(points, other[None]) - state.kernel(points) @ (state.inverse @ row[0]).T
    return np.maximum((state.prior - gain) + (state.prior - _gain(state.inverse, row)) - 2.0 * shared, 0.0)


def slope_of_bound(prior: Prior, state: Posterior, points: FloatArray, mix: TaskMix, beta: float) -> FloatArray:
    """Gradient of the bound ψᵀmean + β·deviation at points (n, K): (n, K)."""
    r = distance(points, state.arms, state.width)  # (n, m)
    rows = MEAN_VARIANCE + state.variance * matern(r)
    turned = rows @ state.inverse  # (M, n, m)
    variance, parts = state.mixed(mix, state.prior - np.einsum("gnm,nm->ng", turned, rows))
    push = np.einsum("gnm,ng->nm", turned, parts) * (beta / np.sqrt(variance))[:, None]
    pull = (state.alpha @ mix - push) * ((1.0 + r) * np.exp(-r))  # d bound / d row · its fall with distance
    pull *= -5.0 * state.variance / (3.0 * state.width**2)
    slope = points * pull.sum(axis=1)[:, None] - pull @ state.arms
    if prior.own is not None:
        slope += state.lift * (mix @ prior.own) * share_slope(points)
    return np.asarray(slope)


def predicted(prior: Prior, state: Posterior, blend: Blend, counts: Counts) -> tuple[FloatArray, FloatArray]:
    """Mean (V,) and variance (V,) of the rewards to come from a blend, their noise included."""
    mean, gain = at(prior, state, blend[None])
    return mean[0], np.maximum(state.prior - gain[0], 0.0) + state.noise / np.maximum(counts, 1e-300)


def observe(prior: Prior, state: Posterior, blend: Blend, reward: Reward, counts: Counts) -> Posterior:
    """Take in one reward (V,) with its counts (0 where unseen)."""
    seen = counts > 0
    if not seen.any():
        return state
    state, arm = _with_arm(prior, state, blend)
    inverse, gain = state.inverse, state.gain
    if len(inverse) == 1 and prior.tasks > 1 and (counts != counts[0]).any():
        inverse, gain = np.repeat(inverse, prior.tasks, axis=0), np.repeat(gain, prior.tasks, axis=1)
    M = len(inverse)
    row = state.kernel(state.arms[arm : arm + 1])[0]  # (m,)
    shift = -(inverse @ row)  # b (M, m)
    shift[:, arm] += 1.0
    spread = np.maximum(shift @ row, 0.0)  # posterior variance at the arm (M,)
    weight = counts[:M]
    scale = np.where(weight > 0, weight / (state.noise + weight * spread), 0.0)  # 1/(d + variance) (M,)
    centre = expected(prior, state.lift, state.arms[arm : arm + 1])[0]
    error = np.where(seen, reward - centre - row @ state.alpha, 0.0) * scale  # (V,)
    reach = state.cross @ shift.T  # (N, M)
    return replace(
        _pooled(state, arm, reward, counts),
        inverse=inverse + (scale[:, None] * shift)[:, :, None] * shift[:, None, :],
        alpha=state.alpha + (shift.T * error if M > 1 else np.outer(shift[0], error)),
        mean=state.mean + reach * error,
        gain=gain + reach * reach * scale,
    )


def _pooled(state: Posterior, arm: int, reward: Reward, counts: Counts) -> Posterior:
    """Count a reward among those of its arm."""
    seen, before = counts > 0, state.weights[arm]
    total, step = before + counts, np.where(seen, reward - state.means[arm], 0.0)
    both, share = seen & (before > 0), counts / np.maximum(before + counts, 1e-300)
    weights, means, visits = state.weights.copy(), state.means.copy(), state.visits.copy()
    weights[arm] = total
    means[arm] += step * share
    visits[arm] += 1.0
    within = np.array([(before * share * step * step)[both].sum(), both.sum()])
    return replace(state, weights=weights, means=means, visits=visits, scatter=state.scatter + within)


def _with_arm(prior: Prior, state: Posterior, blend: Blend) -> tuple[Posterior, int]:
    """Find the arm of a blend or add it; where there are too many, the quarter with the least behind it goes first.

    A rebuild costs O(arms³), so it must be rare.
    """
    arm, away = state.nearest(blend)
    if away <= SAME:
        return state, arm
    if (m := len(state.arms)) >= ARMS:
        behind = state.weights.sum(axis=1) + np.arange(m) * 1e-9  # the oldest among equals
        state = _with_arms(prior, state, np.sort(np.argsort(behind, kind="stable")[m // 4 :]))
    none = np.zeros((1, prior.tasks))
    grown = replace(
        state,
        arms=np.concatenate([state.arms, blend[None]]),
        visits=np.append(state.visits, 0.0),
        weights=np.concatenate([state.weights, none]),
        means=np.concatenate([state.means, none]),
        inverse=np.pad(state.inverse, ((0, 0), (0, 1), (0, 1))),
        alpha=np.concatenate([state.alpha, none]),
        cross=np.concatenate([state.cross, state.kernel(state.points, blend[None])], axis=1),
    )
    return grown, len(state.arms)


def _with_arms(prior: Prior, state: Posterior, kept: NDArray[np.intp]) -> Posterior:
    """Go on with these arms only."""
    told = {name: getattr(state, name)[kept] for name in ("arms", "visits", "weights", "means")}
    return rebuild(prior, replace(state, **told))


def forget_tasks(prior: Prior, state: Posterior, tasks: NDArray[np.intp]) -> Posterior:
    """Drop all rewards of some tasks, and the arms that only they were told at."""
    weights, means = state.weights.copy(), state.means.copy()
    weights[:, tasks] = means[:, tasks] = 0.0
    scatter = np.array([state.noise * state.scatter[1], state.scatter[1]])  # a change is no noise
    dropped = replace(state, weights=weights, means=means, scatter=scatter)
    return _with_arms(prior, dropped, np.flatnonzero(weights.any(axis=1)))


def rebuild(prior: Prior, state: Posterior) -> Posterior:
    """Compute A, α and the points' posterior from the pooled rewards."""
    kernel, weights = state.kernel(state.arms), state.weights
    alike = bool((weights == weights[:, :1]).all())  # one matrix serves all tasks
    offset = state.means - expected(prior, state.lift, state.arms)  # (m, V)
    matrices, alphas = [], []
    for task in range(1 if alike else prior.tasks):
        root = np.sqrt(weights[:, task] / state.noise)
        inverse = np.linalg.inv(np.eye(len(kernel)) + kernel * root[:, None] * root) * root[:, None] * root
        matrices.append(0.5 * (inverse + inverse.T))
        alphas.append(matrices[-1] @ offset[:, slice(None) if alike else slice(task, task + 1)])
    stacked, alpha, cross = np.array(matrices), np.concatenate(alphas, axis=1), state.kernel(state.points)
    mean = expected(prior, state.lift, state.points) + cross @ alpha
    return replace(state, inverse=stacked, alpha=alpha, cross=cross, mean=mean, gain=_gain(stacked, cross))


class Evidence:
    """Marginal likelihood of what was told, over the tasks, with the lift that makes it highest.

    The lift is normal around `prior.lift`: given the kernel, its best value has a closed form (least squares).
    """

    def __init__(self, prior: Prior, state: Posterior) -> None:
        weights, self._lift, (self._within, self._freedom) = state.weights, prior.lift, state.scatter
        offset = np.where(weights > 0, state.means - CENTRE, 0.0)  # (m, V)
        tilt = np.where(weights > 0, feature(prior, state.arms), 0.0)
        self._distance = distance(state.arms, state.arms, 1.0)
        alike = bool((weights == weights[:, :1]).all())  # one matrix serves all tasks
        groups = [slice(None)] if alike else [slice(task, task + 1) for task in range(prior.tasks)]
        self._groups = [
            (seen, weights[seen, tasks][:, 0], offset[seen, tasks], tilt[seen, tasks])
            for tasks in groups if (seen := weights[:, tasks][:, 0] > 0).any()
        ]  # fmt: skip

    def __call__(self, width: float, noise: float, variance: float) -> tuple[float, float, float]:
        """The logarithm of the likelihood, up to a constant, and the lift with its standard error."""
        kernel = MEAN_VARIANCE + variance * matern(self._distance / width)
        square, slope, curve, volume = 0.0, 0.0, LIFT_DEVIATION**-2, 0.0
        for seen, behind, offset, tilted in self._groups:
            factor = np.linalg.cholesky(kernel[np.ix_(seen, seen)] + np.diag(noise / behind))
            target = offset - self._lift * tilted
            white, tilt = np.split(np.linalg.solve(factor, np.hstack([target, tilted])), 2, axis=1)
            square += float((white * white).sum())
            slope += float((white * tilt).sum())
            curve += float((tilt * tilt).sum())
            volume += target.shape[1] * 2.0 * float(np.log(np.diag(factor)).sum())
        more = float(np.clip(slope / curve, -self._lift, 1.0 - self._lift))
        fit = square - 2.0 * more * slope + more * more * curve + volume
        likelihood = -0.5 * (fit + self._within / noise + self._freedom * np.log(noise))
        return likelihood, self._lift + more, curve**-0.5

    def cautious_lift(self, width: float, noise: float, variance: float) -> float:
        """Go below what was expected of the lift only as far as the rewards say for sure."""
        _, lift, error = self(width, noise, variance)
        return max(lift, min(lift + CAUTION * error, self._lift))


def refit(prior: Prior, state: Posterior, *, noise: bool = True) -> Posterior:
    """Choose kernel width, variance, lift and, unless it is known, noise by likelihood."""
    if len(state.arms) < 3:
        return state
    evidence = Evidence(prior, state)
    noises = np.clip(state.noise * np.array(NOISES), 1e-6, 1.0) if noise else [state.noise]
    _, width, fitted = max((evidence(w, s, state.variance)[0], w, float(s)) for w in WIDTHS for s in noises)
    variance = max(prior.variances, key=lambda v: evidence(width, fitted, v)[0])
    lift = evidence.cautious_lift(width, fitted, variance)
    return rebuild(prior, replace(state, width=width, noise=fitted, variance=variance, lift=lift))


def with_lift(prior: Prior, state: Posterior) -> Posterior:
    """Find the lift of another prior in what was told, and rebuild."""
    lift = Evidence(prior, state).cautious_lift(state.width, state.noise, state.variance)
    return rebuild(prior, replace(state, lift=lift))
