"""The shell of every router: ids, open decisions, checks of what comes in, save and load.

The whole router is one frozen `RouterState`. A step makes the next one, and the shell holds it in one attribute: undo
is keeping the old state, and a fork shares it. A policy chooses and learns; the shell never looks inside.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from tanbr.config import check_kept
from tanbr.errors import DecisionError, InputError, SettingsError, StateError
from tanbr.router.simplex import Sizes, as_size
from tanbr.state import Arrays, from_arrays, read_state, to_arrays, write_state
from tanbr.types import (
    Decision,
    FloatArray,
    TaskMix,
    Terms,
    as_blend,
    as_confusion,
    as_counts,
    as_reward,
    as_task_mix,
    frozen,
)  # fmt: skip

LAYOUT = 6  # written into the header; states of tanbr 0.1 have at most 5


@dataclass(frozen=True, eq=False)
class Question:
    """What a router is asked."""

    id: int  # of the decision to come
    task_mix: TaskMix  # (V,) ψ
    models: int = 1  # G
    confusion: FloatArray | None = None  # (V, V) how each task's requests are read; None: rightly
    open: tuple[Decision, ...] = ()  # decisions whose reward is still to come, oldest first

    def decided(self, blends: FloatArray, terms: tuple[Terms, ...] = (), **known: FloatArray) -> Decision:
        """Make the decision of blends (G, K), or of one (K,); of several, `estimates` say what goes to which."""
        return Decision(self.id, self.task_mix, blends, terms=terms, **known)


@dataclass(frozen=True)
class Nothing:
    """The state of a policy in which nothing changes."""


@dataclass(frozen=True, eq=False)
class RouterState:
    """Everything that changes in a router."""

    known: Any  # the policy's own state, a frozen dataclass
    random: Mapping[str, Any]  # the stream of random numbers
    next_id: int = 0
    open: tuple[Decision, ...] = ()  # decisions whose reward is still to come, oldest first


class AskTell:
    """A router: a policy behind `ask` and `tell`.

    A policy's states are frozen dataclasses, to which no step writes. It has

    - `panels`, whether it can choose more than one blend at a time,
    - `start(rng)`, which makes the state that knows nothing,
    - `choose(state, question, rng)`, which makes the decision,
    - `learn(state, decision, rewards, counts, rng)`: the next state, from (G, V) each; counts are 0 where unseen,
    - `warm_start(state, blend, reward, counts)`: the next state, from a reward that it did not ask for,
    - `expected(state)`: the rewards (n, V) that it expects of blends it knows; NaN where it expects nothing.
    """

    kind: ClassVar[str] = ""  # written into saved states
    may_change: ClassVar[frozenset[str]] = frozenset()  # settings that a saved state goes on with as it is asked to

    def __init__(self, policy: Any, sizes: Sizes, *, seed: int = 0, settings: Mapping[str, Any]) -> None:
        self.experts, self.tasks, self.max_active = sizes.experts, sizes.tasks, sizes.max_active
        self._policy = policy
        self._settings = {**asdict(sizes), **settings}  # arguments that build an equal router
        self._rng = np.random.default_rng(as_size(seed, "seed", least=0))  # only a tool: its stream is in the state
        known = policy.start(self._rng)
        self._state = RouterState(known, self._rng.bit_generator.state)

    def ask(self, task_mix: ArrayLike, *, models: int = 1, confusion: ArrayLike | None = None) -> Decision:
        """Choose G blends, 1 to K, for a slot whose task mix is ψ (V,).

        `confusion` (V, V) says how each task's requests are read; rightly, if it is None.
        """
        state, mix = self._state, as_task_mix(task_mix, tasks=self.tasks)
        read = None if confusion is None else as_confusion(confusion, tasks=self.tasks)
        if as_size(models, "models", least=1, most=self.experts) > 1 and not self._policy.panels:
            raise InputError(f"this router chooses one blend at a time (asked for {models}); take another for panels")
        self._rng.bit_generator.state = state.random
        decision = self._policy.choose(state.known, Question(state.next_id, mix, models, read, state.open), self._rng)
        blends = [as_blend(x, experts=self.experts, max_active=self.max_active) for x in decision.blends]
        decision = replace(decision, blends=frozen(blends))
        random, waiting = self._rng.bit_generator.state, (*state.open, decision)
        self._state = replace(state, random=random, next_id=state.next_id + 1, open=waiting)
        return decision

    def tell(self, decision: Decision | int, reward: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Learn from the reward (V,) of one model or (G, V), whenever it comes; NaN where unseen, all NaN declines.

        `counts`, of the same shape, are the requests behind the rewards.
        """
        asked = self._find_open(decision)
        rewards, weights = self._rewards(reward, counts, rows=len(asked.blends))
        if not weights.any():
            self.decline(asked)
            return
        self._rng.bit_generator.state = self._state.random
        known = self._policy.learn(self._state.known, asked, rewards, weights, self._rng)
        self._state = replace(self._without(asked), known=known, random=self._rng.bit_generator.state)

    def decline(self, decision: Decision | int) -> None:
        """Take back a decision that was not served: it leaves no trace but in the random stream, which goes on."""
        self._state = self._without(self._find_open(decision))

    def _without(self, asked: Decision) -> RouterState:
        return replace(self._state, open=tuple(one for one in self._state.open if one.id != asked.id))

    def warm_start(self, blends: ArrayLike, rewards: ArrayLike, counts: ArrayLike | None = None) -> None:
        """Learn from blends (n, K) and rewards (n, V) of earlier, NaN where unseen, with the requests behind each."""
        xs = [as_blend(x, experts=self.experts) for x in _table(blends, "blends", self.experts)]
        known = self._state.known
        for x, r, c in zip(xs, *self._rewards(rewards, counts, rows=len(xs)), strict=True):
            known = self._policy.warm_start(known, x, r, c)
        self._state = replace(self._state, known=known)

    def _rewards(self, rewards: ArrayLike, counts: ArrayLike | None, *, rows: int) -> tuple[FloatArray, FloatArray]:
        """Check rewards and the counts behind them: (n, V) each."""
        told = [as_reward(row, tasks=self.tasks) for row in _table(rewards, "reward", self.tasks, rows=rows)]
        behind = [None] * rows if counts is None else _table(counts, "counts", self.tasks, rows=rows)
        weights = [as_counts(row, reward=one) for row, one in zip(behind, told, strict=True)]
        return frozen(told), frozen(weights)

    @property
    def open(self) -> tuple[Decision, ...]:
        """Decisions whose reward is still to come, oldest first."""
        return self._state.open

    @property
    def known(self) -> Any:
        """The policy's own state, a frozen value: of Algorithm 1 a `PaperState`, of the default router a `Known`."""
        return self._state.known

    @property
    def expected(self) -> FloatArray:
        """Rewards (n, V) that it expects of the blends it knows; NaN where it expects nothing."""
        return np.asarray(self._policy.expected(self._state.known))

    def fork(self) -> Self:
        """Make an independent router that goes on from here, at no cost: the two share what is known now."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), _rng=np.random.default_rng(0))
        return twin

    def save(self, path: str | Path) -> None:
        """Write the whole state atomically."""
        state = self._state
        header = {
            "kind": self.kind, "layout": LAYOUT, "settings": self._settings, "next_id": state.next_id,
            "random": state.random, "open": [_json_of(decision) for decision in state.open],
        }  # fmt: skip
        write_state(path, header, to_arrays(state.known))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Resume bit for bit from what `save` wrote, with the settings it was saved with."""
        return cls._loaded(path, None)

    def resumed(self, path: str | Path) -> Self:
        """Resume from what `save` wrote, with this router's settings; SettingsError where the state cannot do that."""
        return self._loaded(path, json.loads(json.dumps(self._settings)))

    @classmethod
    def _loaded(cls, path: str | Path, asked: dict[str, Any] | None) -> Self:
        """Read a state; a fork plays a slot first, to see that it can."""
        header, arrays = read_state(path)
        if header.get("kind") != cls.kind:
            raise StateError(
                f"{path} holds a {header.get('kind')!r} router, not {cls.kind!r}; load it with its own class"
            )
        layout = header.get("layout")
        if not isinstance(layout, int) or layout < LAYOUT:
            raise StateError(f"{path} was written by tanbr 0.1; start a new state folder")
        try:
            if asked is not None:
                check_kept(header["settings"], asked, source=path, may_change=cls.may_change)
                header["settings"] = asked
            with np.errstate(divide="raise", invalid="raise"):
                router = cls._restored(header, arrays)
                router.fork()._play()
            return router
        except SettingsError:
            raise
        except Exception as error:  # whatever it is that these values make a router stumble over
            said = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise StateError(f"{path} does not fit this router ({said}); use the tanbr that wrote it") from None

    @classmethod
    def least_numbers(cls, settings: Mapping[str, Any]) -> int:  # noqa: ARG003
        """How many numbers a state with these settings holds at least: more are not made room for."""
        return 0

    @classmethod
    def _restored(cls, header: Mapping[str, Any], arrays: Arrays) -> Self:
        """Build the router that a state speaks of."""
        held, least = sum(array.size for array in arrays.values()), cls.least_numbers(header["settings"])
        if held < least:
            raise StateError(f"its settings speak of {least} numbers, it holds {held}")
        router = cls(**header["settings"])
        known = from_arrays(router._policy.start(router._rng), arrays)
        waiting = tuple(_from_json(one, experts=router.experts, tasks=router.tasks) for one in header["open"])
        router._state = RouterState(known, header["random"], int(header["next_id"]), waiting)
        return router

    def _play(self) -> None:
        """Ask, and tell all that is open."""
        AskTell.ask(self, np.full(self.tasks, 1.0 / self.tasks))
        for decision in self.open:
            AskTell.tell(self, decision, np.full(decision.estimates.shape, 0.5))
        self._policy.expected(self._state.known)

    def _find_open(self, decision: Decision | int) -> Decision:
        wanted = decision.id if isinstance(decision, Decision) else decision
        if not isinstance(wanted, int | np.integer) or isinstance(wanted, bool):
            raise DecisionError(f"a decision or its id is needed (got {type(decision).__name__})")
        found = next((one for one in self._state.open if one.id == wanted), None)
        if found is None:
            known = 0 <= wanted < self._state.next_id
            raise DecisionError(
                f"decision {wanted} {'was told already' if known else 'was never asked of this router'}"
            )
        same = (np.array_equal(getattr(decision, name), getattr(found, name)) for name in ("blends", "task_mix"))
        if isinstance(decision, Decision) and not all(same):
            raise DecisionError(f"decision {wanted} is another router's: its blend or task mix differs from this one's")
        return found


def _table(values: ArrayLike, name: str, columns: int, *, rows: int | None = None) -> FloatArray:
    """Check that `values` are rows of numbers, of any number if None; a single row may come without outer brackets."""
    try:
        table = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be rows of {columns} numbers ({error})") from None
    if rows == 1 and table.ndim == 1:
        table = table[None]
    if table.ndim != 2 or table.shape[1] != columns or rows not in (None, len(table)):
        wanted = f"{columns} numbers" if rows == 1 else f"{rows or 'any'} rows of {columns} numbers"
        raise InputError(f"{name} must be {wanted} (got shape {table.shape})")
    return table


def _json_of(decision: Decision) -> dict[str, Any]:
    """Write an open decision for a saved state; JSON keeps every bit of a float."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in asdict(decision).items()}


def _from_json(values: Mapping[str, Any], *, experts: int, tasks: int) -> Decision:
    """Read what `_json_of` wrote."""
    blends = [as_blend(x, experts=experts) for x in values["blends"]]
    mix = as_task_mix(values["task_mix"], tasks=tasks)
    estimates = np.asarray_chkfinite(values["estimates"], dtype=np.float64).reshape(len(blends), tasks)
    terms = tuple(Terms(**why) for why, _ in zip(values["terms"], blends, strict=True))
    return Decision(int(values["id"]), mix, frozen(blends), estimates, terms)
