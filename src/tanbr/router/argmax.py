"""The highest of several bounds, decided by arithmetic and not by rounding."""

from tanbr.types import FloatArray

ROUNDING = 1e-9  # share of a bound: a sum of n terms is off by less than n·2⁻⁵³ of them, 1e-11 for a hundred thousand


def first_best(bounds: FloatArray) -> int:
    """Find the first of those that are highest but for rounding.

    Leaves of one tree often stand for the same blend, so that their bounds are equal in exact arithmetic; which one
    comes out higher by 1e-16 depends on the CPU's order of summing.
    """
    highest = float(bounds.max())
    return int((bounds >= highest - ROUNDING * max(abs(highest), 1.0)).argmax())
