"""Several methods on one stream of untagged requests, slot by slot, and the figures that compare them."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.lab.tasks.traffic import SlotRequests, Stream
from tanbr.lab.world import Contestant
from tanbr.monitor.recogniser import Recognition
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray, SlotMix, SlotRecord, Text, to_jsonable


@dataclass(frozen=True, eq=False)
class Told:
    """A recogniser that is told what requests are: all like one mix, or each of its own task."""

    posteriors: Callable[[Sequence[Text]], FloatArray]  # texts → (n, V)

    def recognise(self, texts: Sequence[Text]) -> Recognition:
        """Recognise requests."""
        keys, known = np.arange(len(texts), dtype=np.uint64), self.posteriors(texts)
        return Recognition(keys, known, np.zeros(len(texts)), np.zeros((len(texts), 0)), informed=True)


class KnownMix:
    """A mix source that is told the true mixes: for upper bounds and for separating two errors.

    What single requests are is for a `recogniser` to say; without one they are all like the mix.
    """

    def __init__(self, mixes: FloatArray, recogniser: Any = None) -> None:
        self._mixes, self.slot, self._recogniser = mixes, 0, recogniser

    def fork(self) -> "KnownMix":
        """Give an independent copy."""
        twin = copy.copy(self)
        twin._recogniser = None if self._recogniser is None else self._recogniser.fork()
        return twin

    @property
    def confusion(self) -> FloatArray | None:
        """The recogniser's."""
        return None if self._recogniser is None else self._recogniser.confusion

    def snapshot(self) -> Any:
        """Give what recognises requests."""
        mix = self._mixes[min(self.slot, len(self._mixes) - 1)]
        told = Told(lambda texts: np.tile(mix, (len(texts), 1)))
        return told if self._recogniser is None else self._recogniser.snapshot()

    def count(self, seen: Recognition) -> None:
        """Take in requests."""
        if self._recogniser is not None:
            self._recogniser.count(seen)

    def close_slot(self) -> SlotMix:
        """Give the true mix of the slot that ended and of the one that starts."""
        if self._recogniser is not None:
            self._recogniser.close_slot()
        ended, coming = (self._mixes[min(slot, len(self._mixes) - 1)] for slot in (self.slot, self.slot + 1))
        self.slot += 1
        return SlotMix(estimate=ended, forecast=coming, uncertainty=np.zeros_like(ended), unknown=0.0, requests=0)


class KnownTasks:
    """A mix source that is told every request's task, and else does as another does."""

    def __init__(self, task_of: Mapping[Text, int], other: Any, *, tasks: int) -> None:
        self._task_of, self._other, self._tasks = task_of, other, tasks

    def fork(self) -> "KnownTasks":
        """Give an independent copy."""
        return KnownTasks(self._task_of, self._other.fork(), tasks=self._tasks)

    @property
    def confusion(self) -> None:
        """Nothing is misread."""

    def snapshot(self) -> Told:
        """Give what recognises requests: each is surely of its task."""
        return Told(lambda texts: np.eye(self._tasks)[[self._task_of[text] for text in texts]])

    def count(self, seen: Recognition) -> None:
        """Take in requests."""
        self._other.count(seen)

    def close_slot(self) -> SlotMix:
        """Give the other's mix and forecast."""
        return self._other.close_slot()


@dataclass(frozen=True, eq=False)
class Comparison:
    """What every method did in every slot."""

    mixes: FloatArray  # (T, V) true mixes
    records: dict[str, list[SlotRecord]]  # method → T records
    best: str  # the method that regret is measured against

    def rewards(self, method: str) -> FloatArray:
        """Mean reward of each slot's requests (T,)."""
        return np.array([record.total_reward for record in self.records[method]])

    def regret(self, method: str) -> FloatArray:
        """Cumulative difference to the best blend per slot, on the same requests (T,)."""
        return np.cumsum(self.rewards(self.best) - self.rewards(method))

    def summary(self, *, tail: int = 100) -> dict[str, dict[str, Any]]:
        """Give per method: mean reward, mean over the last `tail` slots, regret per slot, with standard errors."""
        table = {}
        for method in self.records:
            rewards, lost = self.rewards(method), np.diff(self.regret(method), prepend=0.0)
            ended = rewards[-tail:]
            table[method] = {
                "reward": float(rewards.mean()),
                "reward_se": _standard_error(rewards),
                "tail_reward": float(ended.mean()),
                "tail_reward_se": _standard_error(ended),
                "regret_per_slot": float(lost.mean()),
                "tail_regret_per_slot": float(lost[-tail:].mean()),
                "merges": self.records[method][-1].merge_version,
            }
        return table

    def paired(self, method: str, rival: str, *, tail: int = 100) -> tuple[float, float]:
        """Mean and standard error of the reward above a rival's over the last `tail` slots, on the same requests."""
        difference = (self.rewards(method) - self.rewards(rival))[-tail:]
        return float(difference.mean()), _standard_error(difference)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        slots = {
            method: [
                {
                    "task_mix": r.task_mix,
                    "blend": r.blend,
                    "reward": r.reward,
                    "counts": r.counts,
                    "merge_version": r.merge_version,
                }
                for r in records
            ]
            for method, records in self.records.items()
        }
        result: dict[str, Any] = to_jsonable({"summary": self.summary(), "mixes": self.mixes, "slots": slots})
        return result


def _standard_error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def compare(
    contestants: Mapping[str, Contestant],
    traffic: Stream,
    *,
    best: str,
    watch: Callable[[Comparison, SlotRequests], None] | None = None,
    collect: Callable[[Sequence[Row], FloatArray], None] | None = None,
) -> Comparison:
    """Let every method serve the same requests.

    `watch` sees the comparison so far after every slot, `collect` what each method answered (n,) to a slot's rows.
    """
    result = Comparison(mixes=traffic.mixes, records={method: [] for method in contestants}, best=best)
    for slot in traffic:
        for method, contestant in contestants.items():
            result.records[method].append(contestant.play(slot.rows, collect))
        if watch:
            watch(result, slot)
    return result
