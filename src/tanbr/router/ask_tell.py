"""The shell of every router: decision ids, open decisions, validation, history, save and load.

What is chosen and learned is a `Policy`; this module never looks inside one.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import DecisionError, InputError, StateError
from tanbr.router.migration import LAYOUT, migrated
from tanbr.router.records import Terms, Told, TreeView
from tanbr.router.sizes import Sizes
from tanbr.router.slots import pack, unpack
from tanbr.state import Arrays, from_arrays, read_state, to_arrays, write_state
from tanbr.types import (
    Blend,
    Counts,
    Decision,
    Reward,
    TaskMix,
    as_blend,
    as_counts,
    as_reward,
    as_task_mix,
)


class Policy(Protocol):
    """Chooses and learns; knows nothing of ids, files or bad input."""

    def choose(self, mix: TaskMix, open_blends: list[Blend]) -> tuple[Blend, Terms]:
        """Choose x for ψ while the rewards of `open_blends` are still to come."""
        ...

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Learn what a slot's reward says."""
        ...

    def warm_start(self, blend: Blend, reward: Reward, counts: Counts) -> None:
        """Learn from a reward that this policy did not ask for."""
        ...

    def view(self) -> TreeView:
        """Show the search tree; a single root where there is none."""
        ...

    @property
    def state(self) -> Any:
        """Everything that changes, but for the random generator: one frozen dataclass."""
        ...

    def restore(self, state: Any) -> None:
        """Undo to what `state` was."""
        ...


class AskTell:
    """A router: a policy behind `ask` and `tell`."""

    kind: ClassVar[str] = ""  # written into saved states

    def __init__(
        self,
        policy: Policy,
        rng: np.random.Generator,
        sizes: Sizes,
        *,
        settings: Mapping[str, Any],
        history: int = 5000,
    ) -> None:
        self.experts, self.tasks, self.max_active = sizes.experts, sizes.tasks, sizes.max_active
        self._policy, self._rng = policy, rng
        self._settings = {**asdict(sizes), **settings}  # arguments that build an equal router
        self._next_id = 0
        self._open: dict[int, tuple[Decision, Terms]] = {}
        self._told: deque[Told] = deque(maxlen=history)

    def ask(self, task_mix: ArrayLike) -> Decision:
        """Choose the blend for a slot whose task mix is ψ (V,)."""
        mix = as_task_mix(task_mix, tasks=self.tasks)
        blend, terms = self._policy.choose(mix, [decision.blend for decision, _ in self._open.values()])
        blend = as_blend(blend, experts=self.experts, max_active=self.max_active)
        decision = Decision(self._next_id, mix, blend)
        self._open[decision.id] = decision, terms
        self._next_id += 1
        return decision

    def tell(self, decision: Decision | int, reward: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Learn from the reward (V,), NaN where unseen; late and out of order is fine. All NaN teaches nothing."""
        asked, terms = self._find_open(decision)
        checked = as_reward(reward, tasks=self.tasks)
        weights = as_counts(counts, reward=checked)
        if weights.any():
            self._policy.learn(asked.task_mix, asked.blend, terms, checked, weights)
        del self._open[asked.id]
        self._told.append(Told(asked, checked, weights, terms))

    def warm_start(self, blends: ArrayLike, rewards: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Learn from blends (n, K) and rewards (n, V) of earlier, NaN where unseen; any number of active experts.

        `counts` (n, V) are the requests behind each reward; one where a task was seen, if None.
        """
        try:
            xs, rs = np.array(blends, dtype=np.float64), np.array(rewards, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"blends and rewards must be tables of numbers ({error})") from None
        if xs.ndim != 2 or rs.ndim != 2 or len(xs) != len(rs):
            raise InputError(f"blends and rewards must be tables of equal length (got {xs.shape} and {rs.shape})")
        if counts is not None and np.shape(counts) != rs.shape:
            raise InputError(f"counts must be a table like rewards, {rs.shape} (got shape {np.shape(counts)})")
        behind = [None] * len(rs) if counts is None else list(np.asarray(counts))
        rows = []
        for x, r, c in zip(xs, rs, behind, strict=True):
            reward = as_reward(r, tasks=self.tasks)
            rows.append((as_blend(x, experts=self.experts), reward, as_counts(c, reward=reward)))
        for blend, reward, weights in rows:
            self._policy.warm_start(blend, reward, weights)

    def explain(self, decision: Decision | int) -> Terms:
        """Return the terms of the bound with which an open or remembered decision was chosen."""
        wanted = _id_of(decision)
        if wanted in self._open:
            return self._find_open(decision)[1]
        for told in self._told:
            if told.decision.id == wanted:
                return told.terms
        raise DecisionError(f"decision {wanted} is neither open nor among the last {len(self._told)} told")

    @property
    def open(self) -> tuple[Decision, ...]:
        """Decisions whose reward is still to come, oldest first."""
        return tuple(decision for decision, _ in self._open.values())

    @property
    def history(self) -> tuple[Told, ...]:
        """The slots told last, in the order of telling."""
        return tuple(self._told)

    @property
    def tree(self) -> TreeView:
        """A snapshot of the search tree."""
        return self._policy.view()

    def save(self, path: str | Path) -> None:
        """Write the whole state atomically."""
        header = {
            "kind": self.kind,
            "layout": LAYOUT,
            "settings": self._settings,
            "next_id": self._next_id,
            "random": self._rng.bit_generator.state,
        }
        policy = {f"policy.{name}": array for name, array in to_arrays(self._policy.state).items()}
        write_state(path, header, {**policy, **pack(self._told, self._open.values(), tasks=self.tasks)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Resume bit for bit from what `save` wrote; a copy plays a slot first, to see that it can."""
        header, arrays = read_state(path)
        if header.get("kind") != cls.kind:
            raise StateError(
                f"{path} holds a {header.get('kind')!r} router, not {cls.kind!r}; load it with its own class"
            )
        try:
            with np.errstate(divide="raise", invalid="raise"):
                cls._restored(header, arrays)._play()
            return cls._restored(header, arrays)
        except Exception as error:  # whatever it is that these values make a router stumble over
            said = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise StateError(f"{path} does not fit this router ({said}); use the tanbr that wrote it") from None

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:  # noqa: ARG003
        """How many numbers a state with these settings holds at least: more are not made room for."""
        return 0

    @classmethod
    def _restored(cls, header: Mapping[str, Any], arrays: Arrays) -> Self:
        held, least = sum(array.size for array in arrays.values()), cls.least_numbers(header["settings"])
        if held < least:
            raise StateError(f"its settings speak of {least} numbers, it holds {held}")
        router = cls(**header["settings"])
        policy = {k.removeprefix("policy."): v for k, v in arrays.items() if k.startswith("policy.")}
        start = router._policy.state
        policy = migrated(policy, to_arrays(start), int(header.get("layout", 1)))
        router._policy.restore(from_arrays(start, policy))
        router._rng.bit_generator.state = header["random"]
        router._next_id = int(header["next_id"])
        told, open_ = unpack(arrays, experts=router.experts, tasks=router.tasks)
        router._told.extend(told)
        router._open = {decision.id: (decision, terms) for decision, terms in open_}
        return router

    def _play(self) -> None:
        """Ask, and tell all that is open."""
        self.ask(np.full(self.tasks, 1.0 / self.tasks))
        for decision in self.open:
            self.tell(decision, np.full(self.tasks, 0.5))
        self.tree  # noqa: B018 - looks at every node

    def _find_open(self, decision: Decision | int) -> tuple[Decision, Terms]:
        wanted = _id_of(decision)
        found = self._open.get(wanted)
        if found is None:
            known = 0 <= wanted < self._next_id
            raise DecisionError(
                f"decision {wanted} {'was told already' if known else 'was never asked of this router'}"
            )
        own = found[0]
        if isinstance(decision, Decision) and not (
            np.array_equal(decision.blend, own.blend) and np.array_equal(decision.task_mix, own.task_mix)
        ):
            raise DecisionError(f"decision {wanted} is another router's: its blend or task mix differs from this one's")
        return found


def _id_of(decision: Decision | int) -> int:
    wanted = decision.id if isinstance(decision, Decision) else decision
    if not isinstance(wanted, int | np.integer) or isinstance(wanted, bool):
        raise DecisionError(f"a decision or its id is needed (got {type(decision).__name__})")
    return int(wanted)
