"""What else is known about a request's task: posteriors p(task | text), weighed by the mix that is expected."""

import numpy as np

from tanbr.types import FloatArray, TaskMix

LEAST_SHARE = 1e-3  # of a task in the mix: a forecast of 0 must not outvote a text that says otherwise


def by_mix(posteriors: FloatArray, mix: TaskMix, *, among: FloatArray | None = None) -> FloatArray:
    """Re-weight posteriors under a uniform prior (…, V) by the mix of the slot (V,), as Bayes does.

    `among` (V,), 1 or 0 each, says which tasks are possible; all are if it is None. A text that speaks for no possible
    task gets the mix itself.
    """
    prior = np.maximum(mix, LEAST_SHARE)
    if among is not None:
        prior = prior * among
    weights = posteriors * prior
    weights = np.where(weights.sum(axis=-1, keepdims=True) > 0, weights, prior)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
