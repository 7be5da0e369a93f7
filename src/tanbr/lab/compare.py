"""Several methods on one stream of untagged requests, slot by slot, and the figures that compare them."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.lab.tasks.traffic import SlotRequests, Traffic
from tanbr.lab.world import Contestant
from tanbr.monitor.recogniser import Recognition
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray, SlotMix, SlotRecord, Text, to_jsonable


@dataclass(frozen=True, eq=False)
class Told:
    """A recogniser that is told what requests are."""

    posteriors: Callable[[Sequence[Text]], FloatArray]  # texts → (n, V)

    def recognise(self, texts: Sequence[Text]) -> Recognition:
        """Recognise requests."""
        keys, known = np.arange(len(texts), dtype=np.uint64), self.posteriors(texts)
        return Recognition(keys, known, np.zeros(len(texts)), informed=True)


class Oracle:
    """A mix source that is told the true mixes (T, V), every text's task, or both; a monitor says the rest.

    Without a monitor or tasks all requests are like the mix.
    """

    def __init__(
        self, monitor: Any = None, *, mixes: FloatArray | None = None, task_of: Mapping[Text, int] | None = None
    ) -> None:
        self._monitor, self._mixes, self._task_of, self.slot = monitor, mixes, task_of, 0

    def fork(self) -> "Oracle":
        """Give an independent copy."""
        twin = copy.copy(self)
        twin._monitor = None if self._monitor is None else self._monitor.fork()
        return twin

    @property
    def confusion(self) -> FloatArray | None:
        """The monitor's; nothing is misread where tasks are told."""
        return None if self._monitor is None or self._task_of is not None else self._monitor.confusion

    def snapshot(self) -> Any:
        """Give what recognises requests."""
        if self._task_of is not None:
            task_of = self._task_of
            tasks = 1 + max(task_of.values())
            return Told(lambda texts: np.eye(tasks)[[task_of[text] for text in texts]])
        if self._monitor is not None:
            return self._monitor.snapshot()
        mix = self._mix(self.slot)
        return Told(lambda texts: np.tile(mix, (len(texts), 1)))

    def count(self, seen: Recognition) -> None:
        """Take in requests."""
        if self._monitor is not None:
            self._monitor.count(seen)

    def close_slot(self) -> SlotMix:
        """Give the mix of the slot that ended and of the one that starts."""
        closed: SlotMix | None = None if self._monitor is None else self._monitor.close_slot()
        self.slot += 1
        if self._mixes is None and closed is not None:
            return closed
        ended, coming = self._mix(self.slot - 1), self._mix(self.slot)
        return SlotMix(estimate=ended, forecast=coming, uncertainty=np.zeros_like(ended), unknown=0.0, requests=0)

    def _mix(self, slot: int) -> FloatArray:
        assert self._mixes is not None  # noqa: S101 - or a monitor is there
        return np.asarray(self._mixes[min(slot, len(self._mixes) - 1)])


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

    def table(self, *, tail: int) -> tuple[list[str], list[list[str]]]:
        """Lay the summary out: header and rows."""
        header = ["method", f"last {tail} slots", "all slots", "regret per slot", f"… last {tail}", "merges"]
        rows = [
            [
                method, f"{row['tail_reward']:.3f} ± {row['tail_reward_se']:.3f}",
                f"{row['reward']:.3f} ± {row['reward_se']:.3f}", f"{row['regret_per_slot']:.3f}",
                f"{row['tail_regret_per_slot']:.3f}", str(row["merges"]),
            ]
            for method, row in self.summary(tail=tail).items()
        ]  # fmt: skip
        return header, rows

    def paired(self, method: str, rival: str, *, tail: int = 100) -> tuple[float, float]:
        """Mean and standard error of the reward above a rival's over the last `tail` slots, on the same requests."""
        difference = (self.rewards(method) - self.rewards(rival))[-tail:]
        return float(difference.mean()), _standard_error(difference)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        slots = {method: [vars(record) for record in records] for method, records in self.records.items()}
        result: dict[str, Any] = to_jsonable({"mixes": self.mixes, "slots": slots})
        return result


def _standard_error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def compare(
    contestants: Mapping[str, Contestant],
    traffic: Traffic,
    *,
    best: str,
    watch: Callable[[Comparison, SlotRequests], None] | None = None,
    collect: Callable[[Sequence[Row], FloatArray], None] | None = None,
) -> Comparison:
    """Let every method serve the same requests; `watch` sees every slot, `collect` each method's answers (n,) to it."""
    result = Comparison(mixes=traffic.mixes, records={method: [] for method in contestants}, best=best)
    for slot in traffic:
        for method, contestant in contestants.items():
            result.records[method].append(contestant.play(slot.rows, collect))
        if watch:
            watch(result, slot)
    return result
