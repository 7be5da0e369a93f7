"""Recognising requests before they are answered: a snapshot of what a monitor knows, and the mix as its prior."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.classifier import Classifier
from tanbr.monitor.features import Features, batches
from tanbr.types import FloatArray, TaskMix, Text

LEAST_SHARE = 1e-3  # of a task in the mix: a forecast of 0 must not outvote a text that says otherwise
_BY_REQUEST = ("keys", "posteriors", "familiarity")  # arrays with a row for each request


def by_mix(posteriors: FloatArray, mix: TaskMix) -> FloatArray:
    """Re-weight posteriors under a uniform prior (…, V) by the mix of the slot (V,), as Bayes does."""
    weights = posteriors * np.maximum(mix, LEAST_SHARE)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Recognition:
    """What is known of n requests; hand it to `Monitor.count`, so that no request is read twice."""

    keys: NDArray[np.uint64]  # (n,) hash of each request
    posteriors: FloatArray  # (n, V) p(task | text) under a uniform prior; the forecast mix where nothing is known
    familiarity: FloatArray  # (n,) how well the task that fits best does so, less what its own texts fall short of
    informed: bool  # whether the posteriors come from the texts

    @property
    def novel(self) -> NDArray[np.bool_]:
        """Whether each request is unlike any task (n,)."""
        return self.familiarity < 0

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, rows: Sequence[int] | slice) -> "Recognition":
        """Give what is known of some of the requests."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _BY_REQUEST})

    @staticmethod
    def concatenate(parts: Sequence["Recognition"]) -> "Recognition":
        """Put the requests of all parts, one at least, below one another."""
        if len(parts) == 1:
            return parts[0]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _BY_REQUEST}
        return Recognition(**joined, informed=all(part.informed for part in parts))


@dataclass(frozen=True, eq=False)
class Recogniser:
    """Gives posteriors over the tasks. It never changes: share it between threads, and take a new one between slots."""

    tasks: tuple[str, ...]
    mix: TaskMix  # (V,) the forecast it was taken with
    model: Classifier  # not fitted while nothing is known
    plain: bool = False  # whether it reads without case, marks and spacing

    def recognise(self, texts: Sequence[Text]) -> Recognition:
        """Recognise requests."""
        return Recognition.concatenate([self.read(features) for features, _ in batches(texts, plain=self.plain)])

    def read(self, features: Features) -> Recognition:
        """Recognise requests whose features were read."""
        n = len(features)
        if n == 0 or not self.model.fitted:
            return Recognition(features.keys, np.tile(self.mix, (n, 1)), np.zeros(n), informed=False)
        return Recognition(features.keys, *self.model.read(features), informed=True)
