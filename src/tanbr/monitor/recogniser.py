"""Which task a request belongs to, learned from labelled history: sketches below, a calibrated layer on top."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor import stack
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.features import RELATIONS, SURFACE, VIEWS, Features
from tanbr.monitor.history import History
from tanbr.monitor.sketch import CountMin
from tanbr.types import FloatArray

# Inputs of the layer, which start with the surface, that are multiplied: each with itself, lengths and overlaps with
# one another.
_PRODUCTS = np.array(
    [
        (one, two)
        for one in range(len(SURFACE))
        for two in range(one, len(SURFACE))
        if one == two or {SURFACE[one], SURFACE[two]} <= set(RELATIONS)
    ]
).T


@dataclass(frozen=True, eq=False)
class _Fit:
    """All that reading needs: a function of what was learned, so never saved or merged."""

    layer: stack.Layer
    tables: dict[str, NDArray[np.float32]]  # by view
    thresholds: FloatArray  # (V,) log-probability of a byte 3-gram that few of a task's own texts fall short of
    texts: int  # learned when it was made


class Recogniser:
    """Posterior over V tasks, and whether a request is unlike all of them.

    What it learned are sums (sketches) and a bottom-k sample; the fit is a function of these alone. So two that
    learned apart merge into exactly one that learned everything.
    """

    def __init__(self, tasks: int, config: MonitorConfig) -> None:
        self._tasks, self._config = tasks, config
        self._sketches = {name: CountMin(tasks, rows=config.sketch_rows, width=config.sketch_width) for name in VIEWS}
        self._history = History(config.history)
        self._learned = np.zeros(tasks, dtype=np.int64)  # (V,) texts
        self._fit: _Fit | None = None

    @property
    def ready(self) -> bool:
        """Whether it has learned anything."""
        return bool(self._learned.any())

    def learn(self, features: Features, tasks: NDArray[np.int64]) -> None:
        """Take in texts whose tasks are known (n,)."""
        for name, sketch in self._sketches.items():
            sketch.add(features.views[name], tasks)
        self._history.add(features, tasks)
        self._learned = self._learned + np.bincount(tasks, minlength=self._tasks)

    def merge(self, other: "Recogniser") -> None:
        """Take in all another has learned."""
        for name, sketch in self._sketches.items():
            sketch.merge(other._sketches[name])
        self._history.merge(other._history)
        self._learned = self._learned + other._learned
        self._fit = None

    def refresh(self) -> None:
        """Forget the fit if the history has grown enough since it was made."""
        if self._fit and self._learned.sum() > (1 + self._config.refit_growth) * self._fit.texts:
            self._fit = None

    def read(self, features: Features) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Posteriors under a uniform prior (n, V), and whether each request is unlike any task (n,)."""
        fit = self._fit = self._fit or self._fitted()
        scores = {
            name: sketch.log_likelihood(features.views[name], fit.tables[name])
            for name, sketch in self._sketches.items()
        }
        explained = self._explained(features, scores["bytes"], fit.thresholds)
        return fit.layer.posteriors(self._inputs(features, scores)), explained < 0

    def familiarity(self, features: Features) -> FloatArray:
        """How well the task that explains a request best does so, less what its own texts fall short of (n,).

        Mean log-probability of a byte 3-gram; below 0 a request is unlike any task.
        """
        fit = self._fit = self._fit or self._fitted()
        scores = self._sketches["bytes"].log_likelihood(features.views["bytes"], fit.tables["bytes"])
        return self._explained(features, scores, fit.thresholds)

    def _explained(self, features: Features, scores: FloatArray, thresholds: FloatArray) -> FloatArray:
        known = np.flatnonzero(self._learned)
        best = known[scores[:, known].argmax(axis=1)]
        return np.asarray(scores[np.arange(len(best)), best] / features.views["bytes"].lengths - thresholds[best])

    def _fitted(self) -> _Fit:
        config = self._config
        sample, tasks, counts = self._history.sample()
        scores = {
            name: sketch.leave_one_out(sample.views[name], tasks, counts, config.smoothing)
            for name, sketch in self._sketches.items()
        }
        thresholds = np.zeros(self._tasks)
        explained = self._explained(sample, scores["bytes"], thresholds)
        for task in np.flatnonzero(self._learned):
            thresholds[task] = np.quantile(explained[tasks == task], config.unknown_quantile)
        return _Fit(
            layer=stack.fit(
                self._inputs(sample, scores), tasks, products=_PRODUCTS, tasks=self._tasks, penalty=config.penalty
            ),
            tables={name: sketch.log_table(config.smoothing) for name, sketch in self._sketches.items()},
            thresholds=thresholds,
            texts=int(self._learned.sum()),
        )

    def _inputs(self, features: Features, scores: dict[str, FloatArray]) -> FloatArray:
        """Give what the layer sees of each request (n, F): surface, log-likelihoods by √length and by length."""
        parts = [features.surface]
        for name, score in scores.items():
            known = score[:, self._learned > 0]
            centred = known - known.mean(axis=1, keepdims=True)
            length = features.views[name].lengths[:, None]
            parts.append(centred / np.sqrt(length))
            if name != "edges":  # of which every request has the same number
                parts.append(centred / length)
        return np.concatenate(parts, axis=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give all that was learned, by name."""
        sketches = {f"sketch.{name}": sketch.counts for name, sketch in self._sketches.items()}
        history = {f"history.{name}": array for name, array in self._history.arrays().items()}
        return {"learned": self._learned, **sketches, **history}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave."""
        for name, sketch in self._sketches.items():
            sketch.counts = arrays[f"sketch.{name}"]
        self._history.restore(
            {name.removeprefix("history."): array for name, array in arrays.items() if name.startswith("history.")}
        )
        self._learned, self._fit = arrays["learned"], None
