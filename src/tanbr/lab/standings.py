"""What a simulation says: rewards and paired differences with their intervals, and the tasks' own metrics."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tanbr.lab.compare import Comparison
from tanbr.lab.intervals import Interval, interval
from tanbr.lab.simulate import Outcome
from tanbr.types import FloatArray, to_jsonable

BOUND = "best-per-slot"


@dataclass(frozen=True, eq=False)
class Standings:
    """Outcomes of the same methods with several seeds; all others are compared with the first method."""

    tasks: tuple[str, ...]
    comparisons: dict[int, Comparison]  # seed → what every method did
    outcomes: Sequence[Outcome]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], *, tasks: Sequence[str], mixes: dict[int, FloatArray]) -> "Standings":
        """Group outcomes by seed; `mixes` are the true ones of each seed's stream (T, V)."""
        earned: dict[str, list[float]] = {}
        for outcome in outcomes:
            earned.setdefault(outcome.method, []).extend(record.total_reward for record in outcome.records)
        best = BOUND if BOUND in earned else max(earned, key=lambda name: np.mean(earned[name]))
        comparisons = {
            seed: Comparison(true, {o.method: o.records for o in outcomes if o.seed == seed}, best)
            for seed, true in mixes.items()
        }
        return cls(tuple(tasks), comparisons, outcomes)

    @cached_property
    def methods(self) -> list[str]:
        """The methods, in their order."""
        return list(dict.fromkeys(outcome.method for outcome in self.outcomes))

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

    @property
    def best(self) -> str:
        """The method that regret is measured against."""
        return next(iter(self.comparisons.values())).best

    def held(self, method: str) -> int:
        """How many models a method holds: G of a panel, all K experts with tags, or one."""
        if method.split("+")[0] in ("tags", "untagged"):
            return len(next(iter(self.comparisons.values())).records[method][0].blend)
        found = re.search(r"@(\d+)", method)
        return int(found[1]) if found else 1

    def rewards(self, method: str) -> list[FloatArray]:
        """Mean reward of each slot's requests, one (T,) a seed."""
        return [comparison.rewards(method) for comparison in self.comparisons.values()]

    def reward(self, method: str, *, after: int = 0) -> Interval:
        """Average the reward from slot `after` on."""
        return interval([values[after:] for values in self.rewards(method)])

    def above(self, method: str, rival: str, after: int = 0) -> Interval:
        """Average the difference to a rival on the same requests, from slot `after` on."""
        pairs = zip(self.rewards(method), self.rewards(rival), strict=True)
        return interval([(own - other)[after:] for own, other in pairs])

    def of_tags(self, method: str) -> list[float] | None:
        """Divide the reward by that of the un-merged MoE with tags, per seed; None where it did not run."""
        if "tags" not in self.methods:
            return None
        pairs = zip(self.rewards(method), self.rewards("tags"), strict=True)
        return [float(own.mean() / other.mean()) for own, other in pairs]

    def merges(self, method: str) -> list[int]:
        """Count the merges, per seed."""
        return [comparison.records[method][-1].merge_version for comparison in self.comparisons.values()]

    def figures(self, method: str) -> FloatArray:
        """Average the tasks' own metrics over the seeds in which they came (V,)."""
        table = np.ma.masked_invalid([outcome.figures for outcome in self.outcomes if outcome.method == method])
        return np.asarray(table.mean(axis=0).filled(np.nan))

    @property
    def late(self) -> int:
        """Where the last half of the slots starts: what is earned once learning is over."""
        return min(len(comparison.mixes) for comparison in self.comparisons.values()) // 2

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
                "seconds_a_slot": [o.seconds / len(o.records) for o in self.outcomes if o.method == method],
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
            "seeds": list(self.comparisons),
            "tasks": self.tasks,
            "late_from_slot": self.late,
            "regret_against": self.best,
            "methods": table,
            "above": above,
        }
        result: dict[str, Any] = to_jsonable(values)
        return result
