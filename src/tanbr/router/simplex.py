"""Sizes of a router, points on the simplex, and the highest of several bounds."""

from dataclasses import dataclass

import numpy as np

from tanbr.errors import InputError
from tanbr.types import FloatArray

MOST = 4096  # experts or tasks: a router compares all pairs of experts, and more would not fit in memory
ROUNDING = 1e-9  # share of a bound: a sum of n terms is off by less than n·2⁻⁵³ of them, 1e-11 for a hundred thousand


def as_size(value: object, name: str, *, least: int, most: int | None = None) -> int:
    """Check that `value` is a whole number in its range."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {span} (got {value!r})")
    return int(value)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Sizes:
    """K, V and B of a router."""

    experts: int
    tasks: int
    max_active: int

    @classmethod
    def check(cls, experts: object, tasks: object, max_active: object = None) -> "Sizes":
        """Refuse sizes that make no router; without B, all experts may be active."""
        experts, tasks = as_size(experts, "experts", least=2, most=MOST), as_size(tasks, "tasks", least=1, most=MOST)
        active = as_size(experts if max_active is None else max_active, "max_active", least=1, most=experts)
        return cls(experts, tasks, active)


def keep_largest(points: FloatArray, count: int) -> FloatArray:
    """Keep the B largest weights of each blend, set the rest to 0 and renormalise: (1b). (…, K) to (…, K)."""
    points = np.asarray(points)
    if count >= points.shape[-1]:
        return points
    dropped = np.argsort(-points, axis=-1, kind="stable")[..., count:]
    kept = points.copy()
    np.put_along_axis(kept, dropped, 0.0, axis=-1)
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


def first_best(bounds: FloatArray) -> int:
    """Find the first of those that are highest but for rounding.

    Leaves of one tree often stand for the same blend, so that their bounds are equal in exact arithmetic; which one
    comes out higher by 1e-16 depends on the CPU's order of summing.
    """
    highest = float(bounds.max())
    return int((bounds >= highest - ROUNDING * max(abs(highest), 1.0)).argmax())
