"""The plain values that the stages exchange: task mix ψ, blend x, reward r, and what happened in a slot.

K experts, V tasks, B most experts in a blend. Arrays are float64 and read-only once they have passed one of
the `as_*` functions, which are the only place where shape and range are checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tanbr.errors import InputError

FloatArray: TypeAlias = NDArray[np.float64]
TaskMix: TypeAlias = FloatArray  # ψ (V,): share of each task in a slot's requests, on the simplex
Blend: TypeAlias = FloatArray  # x (K,): weight of each expert, on the simplex, at most B above 0
Reward: TypeAlias = FloatArray  # r (V,): reward per task in [0, 1], NaN where the task was not seen
Counts: TypeAlias = FloatArray  # (V,): how many requests stand behind each reward

Text: TypeAlias = str | tuple[str, str]  # what a request carries: one text, or a pair
AnswersBy: TypeAlias = Literal["labels", "posterior"]  # a head's best label, or weighed by the monitor's posterior

SIMPLEX_TOLERANCE = 1e-6
UNFORESEEN = 0.02  # share of a slot's requests that no forecast rules out


@dataclass(frozen=True)
class Terms:
    """Why a blend was chosen: the terms of its upper confidence bound, eq. (u_node)."""

    mean: float  # ψᵀf(x), predicted reward
    granularity: float = 0.0  # ν₁ρ^h, what the leaf's size may hide
    uncertainty: float = 0.0  # γ√(gᵀZ⁻¹g/w), or β standard deviations
    node: int = -1  # row of the node in Algorithm 1's tree, -1 where there is no tree
    depth: int = 0  # h of that node
    candidates: int = 1  # how many blends were compared
    evidence: float = 0.0  # for a change of some task's rewards: logarithm of a Bayes factor, the highest of all
    suspect: int = -1  # that task, -1 where nothing speaks for a change
    changes: int = 0  # times that a task was found changed, and its rewards of before forgotten

    @property
    def bound(self) -> float:
        """The upper confidence bound U."""
        return self.mean + self.granularity + self.uncertainty


@dataclass(frozen=True, eq=False)
class Decision:
    """The G blends that a router chose to serve side by side in one slot; one blend is a panel of one.

    `blends` may be given as one blend (K,). What else is left out is unknown: estimates of 0.
    """

    id: int  # unique within its router; hand it back with the reward
    task_mix: TaskMix  # (V,) the ψ it was asked with
    blends: FloatArray  # (G, K) the x of each model; two may be equal
    estimates: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # (G, V) reward expected, with optimism
    terms: tuple[Terms, ...] = ()  # (G,) why each blend was chosen; empty where the router does not say

    def __post_init__(self) -> None:
        blends = np.atleast_2d(np.asarray(self.blends, dtype=np.float64))
        estimates = self.estimates if len(self.estimates) else np.zeros((len(blends), len(self.task_mix)))
        object.__setattr__(self, "blends", frozen(blends))
        object.__setattr__(self, "estimates", frozen(estimates))

    @property
    def blend(self) -> Blend:
        """The x of the first model: (K,)."""
        return np.asarray(self.blends[0])

    @property
    def task_models(self) -> NDArray[np.intp]:
        """The model that serves each task: (V,)."""
        return np.asarray(self.estimates.argmax(axis=0))

    @property
    def why(self) -> Terms:
        """The terms of the whole decision: each model's, weighed by the share of the mix that goes to it."""
        if len(self.terms) < 2:
            return self.terms[0] if self.terms else Terms(mean=float("nan"))
        shares = np.bincount(self.task_models, weights=self.task_mix, minlength=len(self.terms))
        mean, granularity, uncertainty = (
            float(shares @ [getattr(one, name) for one in self.terms])
            for name in ("mean", "granularity", "uncertainty")
        )
        return replace(self.terms[0], mean=mean, granularity=granularity, uncertainty=uncertainty, node=-1, depth=0)

    def assign(self, posteriors: ArrayLike) -> NDArray[np.intp]:
        """Send requests with posteriors (n, V) over the tasks to models: (n,) numbers from 0 to G − 1.

        The posteriors assume an even mix and are weighed by the slot's own. A request that is like no task (all 0, or
        NaN) goes to the most even blend.
        """
        p = np.atleast_2d(np.asarray(posteriors, dtype=np.float64))
        tasks = len(self.task_mix)
        if p.ndim != 2 or p.shape[1] != tasks:
            raise InputError(f"posteriors must be (n, {tasks}) (got shape {np.shape(posteriors)})")
        weight = p * ((1.0 - UNFORESEEN) * self.task_mix + UNFORESEEN / tasks)
        # Summed row by row, not by BLAS, whose rounding of one request depends on how many there are.
        models = np.einsum("nv,gv->ng", weight, self.estimates).argmax(axis=1)
        models[~(p.sum(axis=1) > 0)] = int((self.blends**2).sum(axis=1).argmin())
        return models


@dataclass(frozen=True, eq=False)
class SlotMix:
    """What a monitor knows when a slot ends."""

    estimate: TaskMix  # (V,) mix of the slot that ended
    forecast: TaskMix  # (V,) mix expected in the slot that starts
    uncertainty: FloatArray  # (V,) standard deviation of the forecast
    unknown: float  # share of the slot's requests unlike any task, in [0, 1]
    requests: int  # how many requests the slot held
    alarm: bool = False  # the unknown share is too large to be chance


@dataclass(frozen=True, eq=False)
class SlotRecord:
    """One slot, start to end."""

    slot: int
    merge_version: int
    task_mix: TaskMix  # (V,) ψ, as the router saw it
    blend: Blend  # (K,) x, as served
    reward: Reward  # (V,) NaN where unseen
    counts: Counts  # (V,)

    @property
    def total_reward(self) -> float:
        """Mean reward of the slot's scored requests; NaN in a slot without any."""
        seen = self.counts > 0
        if not seen.any():
            return float("nan")
        return float(np.average(self.reward[seen], weights=self.counts[seen]))


def lock(value: Any) -> None:
    """Make the arrays of a frozen dataclass read-only: a state is never written to once it is one."""
    for part in vars(value).values():
        if isinstance(part, np.ndarray):
            part.setflags(write=False)


def frozen(values: ArrayLike) -> FloatArray:
    """Give an array that nobody can write to: the same one if it is that already, else a copy."""
    array = np.asarray(values, dtype=np.float64)
    if array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array


def _frozen(values: ArrayLike, name: str, size: int) -> FloatArray:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be {size} numbers (got {type(values).__name__}: {error})") from None
    if array.shape != (size,):
        raise InputError(f"{name} must be {size} numbers in a row (got shape {array.shape})")
    array.setflags(write=False)
    return array


def _on_simplex(array: FloatArray, name: str) -> FloatArray:
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite (got {_listed(array)})")
    if (array < 0).any():
        raise InputError(f"{name} must not be negative (got {_listed(array)})")
    total = float(array.sum())
    if abs(total - 1.0) > SIMPLEX_TOLERANCE:
        raise InputError(f"{name} must sum to 1 (got {total:.6g}); divide it by its sum")
    return array


def _listed(array: FloatArray) -> str:
    shown = ", ".join(f"{value:.4g}" for value in array[:8])
    return f"[{shown}{', …' if array.size > 8 else ''}]"


def as_task_mix(values: ArrayLike, *, tasks: int) -> TaskMix:
    """Check that `values` is a mix of V tasks; a read-only (V,) copy."""
    return _on_simplex(_frozen(values, "task mix", tasks), "task mix")


def as_confusion(values: ArrayLike, *, tasks: int) -> FloatArray:
    """Check that `values` says how the requests of each of V tasks are read, by a mix; a read-only (V, V) copy.

    A task of whose requests nothing is known, a row of 0, is taken to be read rightly.
    """
    if np.shape(values) != (tasks, tasks):
        raise InputError(f"confusion must be {tasks} rows of {tasks}, a mix each (got shape {np.shape(values)})")
    table = np.array(values, dtype=np.float64)
    unknown = ~table.any(axis=1)
    table[unknown] = np.eye(tasks)[unknown]
    table = np.array([as_task_mix(row, tasks=tasks) for row in table])
    table.setflags(write=False)
    return table


def as_blend(values: ArrayLike, *, experts: int, max_active: int | None = None) -> Blend:
    """Check that `values` is a blend of K experts, at most B above 0; a read-only (K,) copy."""
    blend = _on_simplex(_frozen(values, "blend", experts), "blend")
    active = int(np.count_nonzero(blend))
    if max_active is not None and active > max_active:
        raise InputError(f"blend must have at most {max_active} experts above 0 (got {active})")
    return blend


def as_reward(values: ArrayLike, *, tasks: int) -> Reward:
    """Check that `values` is a reward per task in [0, 1] or NaN; a read-only (V,) copy."""
    reward = _frozen(values, "reward", tasks)
    if np.isinf(reward).any() or (reward < 0).any() or (reward > 1).any():
        raise InputError(f"reward must lie in [0, 1], NaN for a task that was not seen (got {_listed(reward)})")
    return reward


def as_counts(values: ArrayLike | None, *, reward: Reward) -> Counts:
    """Check that `values` counts the requests behind `reward`; one for each seen task when None."""
    seen = ~np.isnan(reward)
    if values is None:
        return _frozen(seen.astype(np.float64), "counts", reward.size)
    counts = _frozen(values, "counts", reward.size)
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise InputError(f"counts must be finite and not negative (got {_listed(counts)})")
    if (counts[seen] == 0).any() or (counts[~seen] > 0).any():
        raise InputError("counts must be above 0 exactly where the reward is not NaN")
    return counts


def to_jsonable(value: Any) -> Any:
    """Turn arrays and NaN into what JSON can hold (NaN becomes null)."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_jsonable(item) for item in value]
    return None if isinstance(value, float) and np.isnan(value) else value
