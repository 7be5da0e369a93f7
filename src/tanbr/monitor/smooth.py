"""The mix of the coming slot: a moving average that forgets the past when the mix jumps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.config import MonitorConfig
from tanbr.monitor.quantify import Prevalence
from tanbr.types import FloatArray, TaskMix


class Forecaster:
    """An exponential moving average of the slots' mixes, with its variance.

    A jump larger than chance explains, `reset_sigmas` expected absolute differences and `reset_margin`, starts the
    average afresh from the slot that jumped; anything smaller moves it by `gain`. Each slot that passes adds
    `drift` to the standard deviation, so that a silence makes the forecast less certain.
    """

    def __init__(self, tasks: int, config: MonitorConfig) -> None:
        self._config = config
        self.mix: TaskMix = np.full(tasks, 1.0 / tasks)
        self.variance: FloatArray = np.full(tasks, 1.0 / tasks)
        self.weight = 0.0  # requests that speak through the average; 0 before the first slot

    @property
    def uncertainty(self) -> FloatArray:
        """Standard deviation of the forecast (V,); at most .5, the most a share can have."""
        return np.minimum(np.sqrt(self.variance), 0.5)

    def update(self, seen: Prevalence | None) -> bool:
        """Take in the mix of a slot, None if it held nothing; whether the average started afresh."""
        self.variance = self.variance + self._config.drift**2
        if seen is None:
            return False
        noise = seen.deviation**2
        jump = float(np.abs(seen.mix - self.mix).sum())
        chance = float(np.sqrt(2 * (noise + self.variance) / np.pi).sum())
        fresh = self.weight == 0 or jump > self._config.reset_sigmas * chance + self._config.reset_margin
        gain = 1.0 if fresh else self._config.gain
        self.mix = (1 - gain) * self.mix + gain * seen.mix
        self.variance = (1 - gain) ** 2 * self.variance + gain**2 * noise
        self.weight = seen.weight if fresh else (1 - gain) * self.weight + seen.weight
        return fresh

    def merge(self, other: "Forecaster") -> None:
        """Average with another, each by the requests behind it."""
        total = self.weight + other.weight
        if total == 0:
            return
        mine, theirs = self.weight / total, other.weight / total
        self.mix = mine * self.mix + theirs * other.mix
        self.variance = mine**2 * self.variance + theirs**2 * other.variance
        self.weight = total

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the whole state, by name."""
        return {"mix": self.mix, "variance": self.variance, "weight": np.array(self.weight)}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take the state `arrays` gave."""
        self.mix, self.variance = arrays["mix"], arrays["variance"]
        self.weight = float(arrays["weight"])
