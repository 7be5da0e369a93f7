"""The largest numbers that a monitor's state may hold: sums and squares of them stay exact, or finite."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 1 << 44  # of counts
FAR = 1e30  # of measurements, in float32 too; not NaN either


def bounded(*arrays: NDArray[Any]) -> bool:
    """Whether all numbers are within the bound of their kind."""
    return all(
        bool((np.abs(array) < FAR).all()) if array.dtype.kind == "f" else bool((array <= MOST).all())
        for array in arrays
    )
