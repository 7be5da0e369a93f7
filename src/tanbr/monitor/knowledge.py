"""What labelled texts teach: sketches that add up, a bounded sample, and the classifier that follows from them.

Of each task the texts with the smallest hashes are kept (a bottom-k sample: uniform over distinct texts). Which texts
those are does not depend on the order of arrival. Kept are hashes and surface features, never the text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.classifier import Classifier, calibrate, explained_by, inputs_of
from tanbr.monitor.features import VIEWS, Features
from tanbr.monitor.sketch import CountMin
from tanbr.monitor.slot import UNKNOWN_QUANTILE
from tanbr.types import FloatArray

REFIT_GROWTH = 0.25  # the classifier is fitted again, between slots, when the history has grown by this share:
# however many labels come late, they cost one fit (about a second) per quarter of growth
HISTORY = 1024  # distinct texts per task that the classifier is calibrated on: bounds the time of a fit, and the state
_FOLDS = 3  # of the cross-validation behind `confusion`


@dataclass(frozen=True, eq=False)
class History:
    """A bounded number of distinct texts of each task, with how often each was learned."""

    features: Features  # n texts, sorted by task and hash but for the last `pending`
    tasks: NDArray[np.int64]  # (n,)
    counts: NDArray[np.int64]  # (n,)
    pending: int = 0  # texts at the end that `compacted` has not yet joined with the others

    @staticmethod
    def empty() -> "History":
        """No texts."""
        return History(Features.empty(), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def add(self, features: Features, tasks: NDArray[np.int64]) -> "History":
        """Take in texts whose tasks are known (n,)."""
        grown = History(
            Features.concatenate([self.features, features]),
            np.concatenate([self.tasks, tasks]),
            np.concatenate([self.counts, np.ones(len(features), dtype=np.int64)]),
            self.pending + len(features),
        )
        return grown.compacted() if grown.pending > HISTORY else grown

    def compacted(self) -> "History":
        """Join equal texts and drop those of a task beyond HISTORY; sorted, so always the same."""
        if not self.pending:
            return self
        order = np.lexsort((self.features.keys, self.tasks))
        keys, tasks = self.features.keys[order], self.tasks[order]
        fresh = np.ones(len(order), dtype=bool)
        fresh[1:] = (keys[1:] != keys[:-1]) | (tasks[1:] != tasks[:-1])
        firsts = np.flatnonzero(fresh)
        counts = np.add.reduceat(self.counts[order], firsts)
        tasks = tasks[firsts]
        rank = np.arange(len(firsts)) - np.searchsorted(tasks, tasks)  # place among its task's keys
        kept = rank < HISTORY
        return History(self.features.take(order[firsts[kept]]), tasks[kept], counts[kept])


@dataclass(frozen=True, eq=False)
class Knowledge:
    """All that was learned about V tasks, and the classifier in use: a part learned since is not in it yet."""

    sketches: Mapping[str, CountMin]  # by VIEWS
    history: History
    learned: NDArray[np.int64]  # (V,) texts
    model: Classifier

    @staticmethod
    def empty(tasks: int) -> "Knowledge":
        """Nothing was learned."""
        sketches = {name: CountMin.empty(tasks) for name in VIEWS}
        return Knowledge(sketches, History.empty(), np.zeros(tasks, dtype=np.int64), Classifier.empty(tasks))

    def learn(self, features: Features, tasks: NDArray[np.int64]) -> "Knowledge":
        """Take in texts whose tasks are known (n,)."""
        return replace(
            self,
            sketches={name: sketch.add(features.views[name], tasks) for name, sketch in self.sketches.items()},
            history=self.history.add(features, tasks),
            learned=self.learned + np.bincount(tasks, minlength=len(self.learned)),
        )

    def recalling(self, old: "Knowledge", places: Mapping[int, int]) -> "Knowledge":
        """Replace what is known of some tasks by what another knows of them: the task's place there → here."""
        known = {there: here for there, here in places.items() if old.learned[there]}
        there, here = list(known), list(known.values())

        def put(mine: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.int64]:
            mine = mine.copy()
            mine[..., here] = theirs[..., there]
            return mine

        rest, told = np.isin(self.history.tasks, here, invert=True), np.isin(old.history.tasks, there)
        parts = (self.history, np.flatnonzero(rest)), (old.history, np.flatnonzero(told))
        names = np.array([known.get(task, -1) for task in range(len(old.learned))], dtype=np.int64)
        history = History(
            Features.concatenate([part.features.take(rows) for part, rows in parts]),
            np.concatenate([self.history.tasks[rest], names[old.history.tasks[told]]]),
            np.concatenate([part.counts[rows] for part, rows in parts]),
            pending=int(rest.sum() + told.sum()),
        )
        sketches = {
            name: CountMin(put(sketch.counts, old.sketches[name].counts)) for name, sketch in self.sketches.items()
        }
        return Knowledge(
            sketches, history.compacted(), put(self.learned, old.learned), Classifier.empty(len(self.learned))
        )

    def refreshed(self) -> "Knowledge":
        """Forget the classifier if the history has grown enough since it was fitted."""
        outgrown = self.model.fitted and self.learned.sum() > (1 + REFIT_GROWTH) * self.model.texts
        return replace(self, model=Classifier.empty(self.model.tasks)) if outgrown else self

    def fitted(self) -> "Knowledge":
        """Fit a classifier if there is none and anything was learned."""
        if self.model.fitted or not self.learned.any():
            return self
        sample, scores, labels = self._scored()
        known = np.flatnonzero(self.learned)
        _, explained = explained_by(sample, scores)
        least = [np.quantile(explained[labels == place], UNKNOWN_QUANTILE) for place in range(len(known))]
        tables = np.stack([sketch.log_table() for sketch in self.sketches.values()])[..., known]
        classifier = Classifier(
            tasks=len(self.learned), known=known, tables=np.ascontiguousarray(tables),
            calibration=calibrate(inputs_of(sample, scores), labels), thresholds=np.array(least),
            texts=int(self.learned.sum()),
        )  # fmt: skip
        return replace(self, model=classifier)

    def _scored(self) -> tuple[Features, FloatArray, NDArray[np.int64]]:
        """Give the sample, its leave-one-out scores (views, n, A), and the place of each task among the known (n,)."""
        kept = self.history.compacted()
        scores = [
            sketch.leave_one_out(kept.features.views[name], kept.tasks, kept.counts)
            for name, sketch in self.sketches.items()
        ]
        known = np.flatnonzero(self.learned)
        return kept.features, np.stack(scores)[:, :, known], np.searchsorted(known, kept.tasks)

    def confusion(self) -> FloatArray:
        """Share of each task's texts (rows) taken for each task (columns), (V, V); 0 in the row of an unknown task.

        Cross-validated on the sample: no text was in the sketches or the regression that judged it.
        """
        table = np.zeros((len(self.learned), len(self.learned)))
        if not self.learned.any():
            return table
        sample, scores, labels = self._scored()
        known, inputs = np.flatnonzero(self.learned), inputs_of(sample, scores)
        # The sample is sorted by task and hash: every third text of a task is a random third of it.
        fold = (np.arange(len(labels)) - np.searchsorted(labels, labels)) % _FOLDS
        for held in range(_FOLDS):
            train, test = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
            if not len(train) or not len(test):
                continue
            present, column = np.unique(labels[train], return_inverse=True)
            taken = present[calibrate(inputs[train], column).posteriors(inputs[test]).argmax(axis=1)]
            np.add.at(table, (known[labels[test]], known[taken]), 1)
        return np.asarray(table / np.maximum(table.sum(axis=1, keepdims=True), 1))
