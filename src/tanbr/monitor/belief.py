"""What else is known about a request's task: posteriors p(task | text), weighed by the mix that is expected."""

import numpy as np

from tanbr.types import FloatArray, TaskMix

LEAST_SHARE = 1e-3  # of a task in the mix: a forecast of 0 must not outvote a text that says otherwise


def by_mix(posteriors: FloatArray, mix: TaskMix) -> FloatArray:
    """Re-weight posteriors under a uniform prior (…, V) by the mix of the slot (V,), as Bayes does."""
    weights = posteriors * np.maximum(mix, LEAST_SHARE)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
