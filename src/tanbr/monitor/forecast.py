"""The mix of the coming slot: a moving average that follows a drift faster, and starts afresh when the mix jumps.

The constants were chosen on held-out parts of GLUE's train text (docs/monitor.md has the errors that they lead to).
"""

from dataclasses import dataclass, replace

import numpy as np

from tanbr.monitor.slot import Prevalence
from tanbr.types import FloatArray, TaskMix

GAIN = 0.3  # weight of the newest slot, to begin with: the paper's
GAIN_RATE = 0.2  # the logarithm of the gain moves by this times the agreement of successive errors
LEAST_GAIN = 0.05  # so that the average still follows after a long steady time
RESET_SIGMAS, RESET_MARGIN = 2.0, 0.1  # a mix jumps if it moves (L1) by so many times what chance explains, plus this
DRIFT = 0.02  # standard deviation that each slot adds to the forecast of a task's share


@dataclass(frozen=True, eq=False)
class Forecast:
    """An exponential moving average of the slots' mixes, as in the paper, whose gain adapts.

    It rises while successive errors point the same way, and falls while they point to and fro. A jump beyond what
    chance explains starts the average afresh.
    """

    mix: TaskMix  # (V,)
    variance: FloatArray  # (V,) of the average
    error: FloatArray  # (V,) of the last forecast; 0 when there was none to judge
    gain: float = GAIN
    age: int = 0  # slots since the average started; 0 before the first

    @staticmethod
    def start(tasks: int) -> "Forecast":
        """Nothing is known: all tasks alike."""
        return Forecast(np.full(tasks, 1.0 / tasks), np.full(tasks, 0.25), np.zeros(tasks))

    @property
    def uncertainty(self) -> FloatArray:
        """Standard deviation of the forecast (V,); at most .5, the most a share can have."""
        return np.minimum(np.sqrt(self.variance + DRIFT**2), 0.5)

    def after(self, seen: Prevalence | None) -> "Forecast":
        """Take in the mix of a slot, None if it held nothing. An average that started afresh has age 1."""
        if seen is None:
            return replace(self, variance=self.variance + DRIFT**2)
        noise = seen.deviation**2
        error = seen.mix - self.mix
        chance = float(np.sqrt(2 / np.pi * (noise + self.variance)).sum())  # expected L1 of the error without a jump
        if self.age == 0 or np.abs(error).sum() > RESET_SIGMAS * chance + RESET_MARGIN:
            return Forecast(seen.mix, noise, np.zeros_like(error), self.gain, age=1)
        norms = float(np.linalg.norm(error) * np.linalg.norm(self.error))
        agreement = float(error @ self.error) / norms if norms > 0 else 0.0  # in [-1, 1]
        adapted = float(np.clip(self.gain * np.exp(GAIN_RATE * agreement), LEAST_GAIN, 1.0))
        gain = max(adapted, 1 / (self.age + 1))  # a young average is a plain mean
        variance = (1 - gain) ** 2 * self.variance + gain**2 * noise
        return Forecast(self.mix + gain * error, variance, error, adapted, self.age + 1)
