"""Boxes that meet the simplex, and points on it: constraints (1a) and (1b)."""

import numpy as np

from tanbr.types import Blend, FloatArray


def keep_largest(points: FloatArray, count: int) -> FloatArray:
    """Keep the B largest weights of each blend, set the rest to 0 and renormalise: (1b). (…, K) to (…, K)."""
    points = np.asarray(points)
    if count >= points.shape[-1]:
        return points
    dropped = np.argsort(-points, axis=-1, kind="stable")[..., count:]
    kept = points.copy()
    np.put_along_axis(kept, dropped, 0.0, axis=-1)
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


def is_feasible(low: FloatArray, high: FloatArray) -> bool:
    """Whether the box [low, high] holds a point that sums to 1: (1a)."""
    return float(low.sum()) <= 1.0 <= float(high.sum())


def corner_point(low: FloatArray, high: FloatArray) -> Blend:
    """Find a basic feasible solution of the LP {low ≤ x ≤ high, Σx = 1}: fill the sides in order until the sum is 1."""
    span = high - low
    before = np.cumsum(span) - span
    return _exact(low + np.clip(1.0 - low.sum() - before, 0.0, span))


def proportional_point(low: FloatArray, high: FloatArray) -> Blend:
    """Interior point low + s(high − low) with Σ = 1."""
    span = high - low
    total = float(span.sum())
    share = (1.0 - float(low.sum())) / total if total > 0 else 0.0
    return _exact(low + np.clip(share, 0.0, 1.0) * span)


def _exact(points: FloatArray) -> FloatArray:
    return np.asarray(points / points.sum(axis=-1, keepdims=True))
