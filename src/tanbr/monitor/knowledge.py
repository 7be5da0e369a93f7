"""What labelled texts teach: sketches that add up and a bounded sample, and the classifier that follows from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor import calibration
from tanbr.monitor.bounds import bounded
from tanbr.monitor.classifier import PRODUCTS, Classifier, explained_by, inputs_of
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.features import VIEWS, Features
from tanbr.monitor.history import History
from tanbr.monitor.sketch import CountMin
from tanbr.types import FloatArray

_FOLDS = 3  # of the cross-validation behind `confusion`


class Knowledge:
    """All that was learned about V tasks.

    What it holds are sums (sketches) and a bottom-k sample; a classifier is a function of these alone. So two that
    learned apart merge into exactly one that learned everything.
    """

    def __init__(self, tasks: int, config: MonitorConfig) -> None:
        self._tasks, self._config = tasks, config
        self._sketches = {name: CountMin(tasks, rows=config.sketch_rows, width=config.sketch_width) for name in VIEWS}
        self._history = History(config.history)
        self._learned = np.zeros(tasks, dtype=np.int64)  # (V,) texts
        self._classifier: Classifier | None = None
        self._confusion: FloatArray | None = None

    def learn(self, features: Features, tasks: NDArray[np.int64]) -> None:
        """Take in texts whose tasks are known (n,)."""
        for name, sketch in self._sketches.items():
            sketch.add(features.views[name], tasks)
        self._history.add(features, tasks)
        self._learned = self._learned + np.bincount(tasks, minlength=self._tasks)

    def merge(self, other: "Knowledge") -> None:
        """Take in all another has learned."""
        for name, sketch in self._sketches.items():
            sketch.merge(other._sketches[name])
        self._history.merge(other._history)
        self._learned = self._learned + other._learned
        self._classifier = self._confusion = None

    def refresh(self) -> None:
        """Forget the classifier if the history has grown enough since it was fitted."""
        if self._classifier and self._learned.sum() > (1 + self._config.refit_growth) * self._classifier.texts:
            self._classifier = self._confusion = None

    @property
    def classifier(self) -> Classifier | None:
        """The classifier, fitted now if there is none; None before anything was learned."""
        if self._classifier is None and self._learned.any():
            self._classifier, self._confusion = self._fitted(), None
        return self._classifier

    def _scored(self) -> tuple[Features, FloatArray, NDArray[np.int64]]:
        """Give the sample, its leave-one-out scores (views, n, A), and the place of each task among the known (n,)."""
        sample, tasks, counts = self._history.sample()
        scores = [
            sketch.leave_one_out(sample.views[name], tasks, counts, self._config.smoothing)
            for name, sketch in self._sketches.items()
        ]
        known = np.flatnonzero(self._learned)
        return sample, np.stack(scores)[:, :, known], np.searchsorted(known, tasks)

    def _fitted(self) -> Classifier:
        config = self._config
        sample, scores, labels = self._scored()
        known = np.flatnonzero(self._learned)
        _, explained = explained_by(sample, scores)
        return Classifier(
            tasks=self._tasks,
            known=known,
            tables=np.ascontiguousarray(
                np.stack([sketch.log_table(config.smoothing) for sketch in self._sketches.values()])[..., known]
            ),
            calibration=calibration.fit(inputs_of(sample, scores), labels, products=PRODUCTS, penalty=config.penalty),
            thresholds=np.array(
                [np.quantile(explained[labels == place], config.unknown_quantile) for place in range(len(known))]
            ),
            texts=int(self._learned.sum()),
        )

    @property
    def confusion(self) -> FloatArray:
        """Share of each task's texts (rows) taken for each task (columns), (V, V); 0 in the row of an unknown task.

        Cross-validated on the sample: no text was in the sketches or the regression that judged it.
        """
        if self._confusion is None or not self._confusion.any():
            self._confusion = self._cross_validated()
            self._confusion.setflags(write=False)
        return self._confusion

    def _cross_validated(self) -> FloatArray:
        table = np.zeros((self._tasks, self._tasks))
        if not self._learned.any():
            return table
        sample, scores, labels = self._scored()
        known, inputs = np.flatnonzero(self._learned), inputs_of(sample, scores)
        # The sample is sorted by task and hash: every third text of a task is a random third of it.
        fold = (np.arange(len(labels)) - np.searchsorted(labels, labels)) % _FOLDS
        for held in range(_FOLDS):
            train, test = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
            if not len(train) or not len(test):
                continue
            present, column = np.unique(labels[train], return_inverse=True)
            fitted = calibration.fit(inputs[train], column, products=PRODUCTS, penalty=self._config.penalty)
            taken = present[fitted.posteriors(inputs[test]).argmax(axis=1)]
            np.add.at(table, (known[labels[test]], known[taken]), 1)
        return np.asarray(table / np.maximum(table.sum(axis=1, keepdims=True), 1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give all that was learned, by name, and the classifier in use: a part learned since is not in it yet."""
        sketches = {f"sketch.{name}": sketch.counts for name, sketch in self._sketches.items()}
        history = {f"history.{name}": array for name, array in self._history.arrays().items()}
        classifier = Classifier.absent() if self._classifier is None else self._classifier.arrays()
        fitted = {f"classifier.{name}": array for name, array in classifier.items()}
        return {"learned": self._learned, **sketches, **history, **fitted}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave; ValueError for one that cannot be."""

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}

        learned, sketches = arrays["learned"], part("sketch.")
        for count in (learned, *sketches.values()):
            if (count < 0).any() or not bounded(count):
                raise ValueError("a count of what was learned is below 0 or beyond all bounds")
        self._history.restore(part("history."))
        sample, tasks, times = self._history.sample()
        if not np.array_equal(np.unique(tasks), np.flatnonzero(learned)) or not bounded(times):
            raise ValueError("its history is not of the tasks it has learned")
        for name, counts in sketches.items():
            least = np.bincount(tasks, weights=times * sample.views[name].lengths, minlength=self._tasks)
            totals = counts.sum(axis=1)  # (rows, V)
            if (totals != totals[0]).any() or (totals[0] < least).any():
                raise ValueError(f"its sketch of {name} has not counted what its history holds")
        table = (self._config.sketch_rows, self._config.sketch_width)
        self._classifier = Classifier.restored(part("classifier."), tasks=self._tasks, learned=learned, table=table)
        for name, sketch in self._sketches.items():
            sketch.counts = sketches[name]
        self._learned, self._confusion = learned, None
