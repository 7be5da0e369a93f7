"""Which task a request belongs to, learned from labelled history: sketches below, a calibrated layer on top."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.config import MonitorConfig
from tanbr.monitor.features import Features
from tanbr.monitor.history import History
from tanbr.monitor.ragged import Ragged
from tanbr.monitor.sketch import CountMin
from tanbr.monitor.stack import Stack, fit
from tanbr.types import FloatArray


class Recogniser:
    """Posterior over V tasks, and whether a request is unlike all of them.

    What it learned are sums (sketches) and a bottom-k sample; the fit is a function of these alone. So two that
    learned apart merge into exactly one that learned everything.
    """

    def __init__(self, tasks: int, config: MonitorConfig) -> None:
        self._tasks, self._config = tasks, config
        self._words = CountMin(tasks, rows=config.sketch_rows, width=config.word_width)
        self._chars = CountMin(tasks, rows=config.sketch_rows, width=config.char_width)
        self._history = History(config.history)
        self._learned = np.zeros(tasks, dtype=np.int64)  # (V,) texts
        self._fitted_on = 0  # texts learned at the last fit
        self._stack: Stack | None = None
        self._tables: list[NDArray[np.float32]] = []
        self._threshold = -np.inf

    def learn(self, features: Features, tasks: NDArray[np.int64]) -> None:
        """Take in texts whose tasks are known (n,)."""
        self._words.add(features.words, tasks)
        self._chars.add(features.chars, tasks)
        self._history.add(features, tasks)
        self._learned += np.bincount(tasks, minlength=self._tasks)

    def merge(self, other: "Recogniser") -> None:
        """Take in all another has learned."""
        self._words.merge(other._words)
        self._chars.merge(other._chars)
        self._history.merge(other._history)
        self._learned += other._learned
        self._stack = None

    def refresh(self) -> None:
        """Fit anew if the history has grown enough since the last time."""
        if self._learned.sum() > (1 + self._config.refit_growth) * self._fitted_on:
            self._stack = None

    def read(self, features: Features) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Posteriors under a uniform prior (n, V), and whether each request is unlike any task (n,)."""
        if not self._learned.any():
            return np.full((len(features), self._tasks), 1.0 / self._tasks), np.zeros(len(features), dtype=bool)
        stack = self._stack or self._fit()
        words = self._words.log_likelihood(features.words, self._tables[0])
        chars = self._chars.log_likelihood(features.chars, self._tables[1])
        novel = _familiarity(chars, features.chars) < self._threshold
        return stack.posteriors(self._inputs(features, words, chars)), novel

    def _fit(self) -> Stack:
        sample, tasks, counts = self._history.sample()
        smoothing = self._config.smoothing
        self._tables = [self._words.log_table(smoothing), self._chars.log_table(smoothing)]
        words = self._words.leave_one_out(sample.words, tasks, counts, smoothing)
        chars = self._chars.leave_one_out(sample.chars, tasks, counts, smoothing)
        inputs = self._inputs(sample, words, chars)
        self._stack = fit(inputs, tasks, tasks=self._tasks, penalty=self._config.penalty)
        self._threshold = float(np.quantile(_familiarity(chars, sample.chars), self._config.unknown_quantile))
        self._fitted_on = int(self._learned.sum())
        return self._stack

    def _inputs(self, features: Features, words: FloatArray, chars: FloatArray) -> FloatArray:
        parts = [features.surface]
        for scores, grams in ((words, features.words), (chars, features.chars)):
            known = scores[:, self._learned > 0]
            centred = known - known.mean(axis=1, keepdims=True)
            length = grams.lengths[:, None]
            parts += [centred / np.sqrt(length), centred / length]
        return np.concatenate(parts, axis=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the whole learned state, by name; the fit is not part of it, being a function of the rest."""
        history = {f"history_{name}": array for name, array in self._history.arrays().items()}
        return {"words": self._words.counts, "chars": self._chars.counts, "learned": self._learned, **history}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave."""
        self._words.counts, self._chars.counts = arrays["words"], arrays["chars"]
        self._learned = arrays["learned"]
        self._history.restore(
            {name.removeprefix("history_"): array for name, array in arrays.items() if name.startswith("history_")}
        )
        self._stack = None


def _familiarity(scores: FloatArray, grams: Ragged) -> FloatArray:
    """Log-probability of a 3-gram under the task that explains the request best (n,)."""
    return np.asarray(scores.max(axis=1) / grams.lengths)
