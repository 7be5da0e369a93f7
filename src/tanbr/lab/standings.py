"""What a simulation says: rewards and paired differences with their intervals, and the tasks' own metrics."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tanbr.lab.intervals import Interval, interval
from tanbr.lab.simulate import Outcome
from tanbr.types import FloatArray, to_jsonable

BOUND = "best-per-slot"


@dataclass(frozen=True, eq=False)
class Standings:
    """Outcomes of the same methods with several seeds; all others are compared with the first method."""

    outcomes: Sequence[Outcome]
    tasks: Sequence[str]
    mixes: dict[int, FloatArray]  # seed → the true mixes of its stream (T, V)

    @cached_property
    def by_method(self) -> dict[str, list[Outcome]]:
        """The methods in their order, and what each did with every seed."""
        found: dict[str, list[Outcome]] = {outcome.method: [] for outcome in self.outcomes}
        for seed in self.mixes:
            for outcome in self.outcomes:
                if outcome.seed == seed:
                    found[outcome.method].append(outcome)
        return found

    @property
    def methods(self) -> list[str]:
        """The methods, in their order."""
        return list(self.by_method)

    @property
    def subject(self) -> str:
        """The method that is compared with all others."""
        return self.methods[0]

    @property
    def variants(self) -> list[str]:
        """The first method, and those that differ from it in their start or their number of models alone."""
        base = re.split(r"[+@]", self.subject)[0]
        bounds = ("oracle", "recognised")
        own = [m for m in self.methods if re.split(r"[+@]", m)[0] == base and not any(word in m for word in bounds)]
        return [self.subject, *(m for m in own if m != self.subject)]

    @cached_property
    def best(self) -> str:
        """The method that regret is measured against: the bound, or what earned most."""
        return BOUND if BOUND in self.by_method else max(self.methods, key=lambda name: np.mean(self.rewards(name)))

    def held(self, method: str) -> int:
        """How many models a method holds: G of a panel, all K experts with tags, or one."""
        if method.split("+")[0] in ("tags", "untagged"):
            return len(self.by_method[method][0].records[0].blend)
        found = re.search(r"@(\d+)", method)
        return int(found[1]) if found else 1

    def rewards(self, method: str) -> list[FloatArray]:
        """Mean reward of each slot's requests, one (T,) a seed."""
        return [np.array([record.total_reward for record in one.records]) for one in self.by_method[method]]

    def reward(self, method: str, *, after: int = 0) -> Interval:
        """Average the reward from slot `after` on."""
        return interval([values[after:] for values in self.rewards(method)])

    def above(self, method: str, rival: str, after: int = 0) -> Interval:
        """Average the difference to a rival on the same requests, from slot `after` on."""
        return interval([(own - other)[after:] for own, other in self._pairs(method, rival)])

    def regret(self, method: str) -> list[FloatArray]:
        """Cumulative difference to the best method on the same requests, one (T,) a seed."""
        return [np.cumsum(best - own) for best, own in self._pairs(self.best, method)]

    def _pairs(self, method: str, rival: str) -> Iterable[tuple[FloatArray, FloatArray]]:
        return zip(self.rewards(method), self.rewards(rival), strict=True)

    def of_tags(self, method: str) -> list[float] | None:
        """Divide the reward by that of the un-merged MoE with tags, per seed; None where it did not run."""
        if "tags" not in self.methods:
            return None
        return [float(own.mean() / other.mean()) for own, other in self._pairs(method, "tags")]

    def merges(self, method: str) -> list[int]:
        """Count the merges, per seed."""
        return [outcome.records[-1].merge_version for outcome in self.by_method[method]]

    def figures(self, method: str) -> FloatArray:
        """Average the tasks' own metrics over the seeds in which they came (V,)."""
        table = np.ma.masked_invalid([outcome.figures for outcome in self.by_method[method]])
        return np.asarray(table.mean(axis=0).filled(np.nan))

    @property
    def late(self) -> int:
        """Where the last half of the slots starts: what is earned once learning is over."""
        return min(map(len, self.mixes.values())) // 2

    def to_json(self) -> dict[str, Any]:
        """Everything but the slots."""
        table = {
            method: {
                "reward": asdict(self.reward(method)),
                "late_reward": asdict(self.reward(method, after=self.late)),
                "share_of_tags": self.of_tags(method),
                "regret_a_slot": self.above(self.best, method).mean,
                "models": self.held(method),
                "merges": self.merges(method),
                "seconds_a_slot": [one.seconds / len(one.records) for one in self.by_method[method]],
                "figures": dict(zip(self.tasks, self.figures(method), strict=True)),
            }
            for method in self.methods
        }
        above = {
            method: {
                rival: {"all": asdict(self.above(method, rival)), "late": asdict(self.above(method, rival, self.late))}
                for rival in self.methods
                if rival != method
            }
            for method in self.variants
        }
        values = {
            "seeds": list(self.mixes),
            "tasks": self.tasks,
            "late_from_slot": self.late,
            "regret_against": self.best,
            "methods": table,
            "above": above,
        }
        result: dict[str, Any] = to_jsonable(values)
        return result
