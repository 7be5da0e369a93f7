"""The mix of the coming slot: a moving average that hurries after a drift and forgets the past when the mix jumps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.bounds import bounded
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.quantify import Prevalence
from tanbr.types import FloatArray, TaskMix, as_task_mix


class Forecaster:
    """An exponential moving average of the slots' mixes, as in the paper, whose gain adapts.

    While successive errors point the same way the average lags behind: the gain rises. While they point to and fro
    there is nothing but noise: it falls. A jump beyond what chance explains starts the average afresh.
    """

    def __init__(self, tasks: int, config: MonitorConfig) -> None:
        self._config = config
        self.mix: TaskMix = np.full(tasks, 1.0 / tasks)
        self._variance: FloatArray = np.full(tasks, 0.25)  # (V,) of the average
        self._error: FloatArray = np.zeros(tasks)  # (V,) of the last forecast; 0 when there was none to judge
        self._gain = config.gain
        self._age = 0  # slots since the average started; 0 before the first
        self._weight = 0.0  # requests that speak through the average

    @property
    def uncertainty(self) -> FloatArray:
        """Standard deviation of the forecast (V,); at most .5, the most a share can have."""
        return np.minimum(np.sqrt(self._variance + self._config.drift**2), 0.5)

    def update(self, seen: Prevalence | None) -> bool:
        """Take in the mix of a slot, None if it held nothing; whether the average started afresh."""
        config = self._config
        if seen is None:
            self._variance = self._variance + config.drift**2
            return False
        noise = seen.deviation**2
        error = seen.mix - self.mix
        chance = float(np.sqrt(2 / np.pi * (noise + self._variance)).sum())  # expected L1 of the error without a jump
        if self._age == 0 or np.abs(error).sum() > config.reset_sigmas * chance + config.reset_margin:
            self.mix, self._variance, self._weight = seen.mix, noise, seen.weight
            self._error, self._age = np.zeros_like(error), 1
            return True
        norms = float(np.linalg.norm(error) * np.linalg.norm(self._error))
        agreement = float(error @ self._error) / norms if norms > 0 else 0.0  # in [-1, 1]
        self._gain = float(np.clip(self._gain * np.exp(config.gain_rate * agreement), config.gain_least, 1.0))
        self._age += 1
        gain = max(self._gain, 1 / self._age)  # a young average is a plain mean
        self.mix = self.mix + gain * error
        self._variance = (1 - gain) ** 2 * self._variance + gain**2 * noise
        self._weight = (1 - gain) * self._weight + seen.weight
        self._error = error
        return False

    def merge(self, other: "Forecaster") -> None:
        """Average with another, each by the requests behind it."""
        total = self._weight + other._weight
        if total == 0:
            return
        mine, theirs = self._weight / total, other._weight / total
        self.mix = mine * self.mix + theirs * other.mix
        self._variance = mine**2 * self._variance + theirs**2 * other._variance
        self._error = mine * self._error + theirs * other._error
        self._gain = mine * self._gain + theirs * other._gain
        self._age = max(self._age, other._age)
        self._weight = total

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the whole state, by name."""
        numbers = np.array([self._gain, self._age, self._weight])
        return {"mix": self.mix, "variance": self._variance, "error": self._error, "numbers": numbers}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave; ValueError for one that cannot be."""
        if not bounded(*arrays.values()):
            raise ValueError("a number of its forecast is beyond all bounds")
        mix, variance = as_task_mix(arrays["mix"], tasks=len(self.mix)), arrays["variance"]
        gain, age, weight = (float(number) for number in arrays["numbers"])
        if (variance < 0).any() or not 0 < gain <= 1 or age < 0 or weight < 0:
            raise ValueError("its forecast is not one that slots can lead to")
        self.mix, self._variance, self._error = mix, variance, arrays["error"]
        self._gain, self._age, self._weight = gain, int(age), weight
