"""The shell of every router: decision ids, open decisions, validation, history, save and load.

What is chosen and learned is a `Policy`; this module never looks inside one.
"""

import json
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from tanbr.config import check_kept
from tanbr.errors import DecisionError, InputError, SettingsError, StateError
from tanbr.router.migration import LAYOUT, migrated, settings_of
from tanbr.router.panel import Panel
from tanbr.router.readings import Readings
from tanbr.router.records import Open, Terms, Told, TreeView
from tanbr.router.sizes import Sizes, as_size
from tanbr.router.slots import pack, unpack
from tanbr.state import Arrays, from_arrays, read_state, to_arrays, write_state
from tanbr.types import (
    Blend,
    Counts,
    Decision,
    FloatArray,
    PanelDecision,
    Reward,
    TaskMix,
    as_blend,
    as_counts,
    as_reward,
    as_task_mix,
)


class Policy(Protocol):
    """Chooses and learns; knows nothing of ids, files or bad input."""

    def choose(self, mix: TaskMix, open_slots: list[Open]) -> tuple[Blend, Terms]:
        """Choose x for ψ while the rewards of `open_slots` are still to come; changes nothing but the random stream."""
        ...

    def learn(self, mix: TaskMix, blend: Blend, terms: Terms, reward: Reward, counts: Counts) -> None:
        """Learn what a slot's reward says."""
        ...

    def choose_panel(self, readings: Readings, models: int, open_slots: list[Open]) -> Panel:
        """Choose G > 1 blends jointly for ψ, as it is read; changes nothing but the random stream."""
        ...

    def learn_panel(self, readings: Readings, panel: Panel, rewards: FloatArray, counts: FloatArray) -> None:
        """Learn what the rewards of all models in a slot say, (G, V); 0 counts where unseen."""
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
    may_change: ClassVar[Collection[str]] = ()  # settings that a saved state goes on with as they are asked for

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
        self._open: dict[int, Open] = {}
        self._told: deque[Told] = deque(maxlen=history)

    @overload
    def ask(self, task_mix: ArrayLike, *, models: None = None, confusion: None = None) -> Decision: ...
    @overload
    def ask(self, task_mix: ArrayLike, *, models: int, confusion: ArrayLike | None = None) -> PanelDecision: ...
    def ask(
        self, task_mix: ArrayLike, *, models: int | None = None, confusion: ArrayLike | None = None
    ) -> Decision | PanelDecision:
        """Choose the blend for a slot whose task mix is ψ (V,), or a panel of G blends, 1 to K.

        For a panel, `confusion` (V, V) says how each task's requests are read; rightly, if it is None.
        """
        mix = as_task_mix(task_mix, tasks=self.tasks)
        readings = Readings.of(mix, confusion)
        count = 1 if models is None else as_size(models, "models", least=1, most=self.experts)
        open_slots = list(self._open.values())
        if count == 1:
            blend, terms = self._policy.choose(mix, open_slots)
            panel = Panel(blend[None], np.zeros((1, self.tasks)), (terms,))
        else:
            panel = self._policy.choose_panel(readings, count, open_slots)
        blends = [as_blend(x, experts=self.experts, max_active=self.max_active) for x in panel.blends]
        decision: Decision | PanelDecision = Decision(self._next_id, mix, blends[0])
        if models is not None:
            decision = PanelDecision(self._next_id, mix, _read_only(blends), _read_only(panel.estimates))
        self._open[decision.id] = Open(decision, panel.terms, readings.confusion)
        self._next_id += 1
        return decision

    def tell(
        self, decision: Decision | PanelDecision | int, reward: ArrayLike, counts: ArrayLike | None = None
    ) -> None:
        """Learn from the reward (V,), of a panel (G, V); NaN where unseen. All NaN declines: it leaves no trace.

        Rewards may come late and out of order. `counts`, of the same shape, are the requests behind them.
        """
        slot = self._find_open(decision)
        asked = slot.decision
        if isinstance(asked, PanelDecision):
            told = self._as_table(reward, counts, rows=len(asked.blends))
        else:
            checked = as_reward(reward, tasks=self.tasks)
            told = _Rewards(checked, as_counts(counts, reward=checked))
        if told.counts.any():
            if isinstance(asked, PanelDecision) and len(asked.blends) > 1:
                panel = Panel(asked.blends, asked.estimates, slot.why)
                self._policy.learn_panel(Readings.of(asked.task_mix, slot.confusion), panel, *told)
            else:
                one = (np.reshape(table, self.tasks) for table in told)
                self._policy.learn(asked.task_mix, slot.blends[0], slot.why[0], *one)
            self._told.append(Told(asked, *told, slot.why))
        del self._open[asked.id]

    def _as_table(self, rewards: ArrayLike, counts: ArrayLike | None, *, rows: int) -> "_Rewards":
        """Check the rewards (G, V) of a panel and the counts behind them."""
        if np.shape(rewards) != (rows, self.tasks) or (counts is not None and np.shape(counts) != (rows, self.tasks)):
            raise InputError(
                f"rewards and counts of a panel must be {rows} rows of {self.tasks} (got shapes {np.shape(rewards)} "
                f"and {np.shape(counts) if counts is not None else 'none'})"
            )
        checked = [as_reward(row, tasks=self.tasks) for row in np.asarray(rewards)]
        behind = [None] * rows if counts is None else list(np.asarray(counts))
        weights = [as_counts(row, reward=reward) for row, reward in zip(behind, checked, strict=True)]
        return _Rewards(_read_only(checked), _read_only(weights))

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

    @overload
    def explain(self, decision: Decision | int) -> Terms: ...
    @overload
    def explain(self, decision: PanelDecision) -> tuple[Terms, ...]: ...
    def explain(self, decision: Decision | PanelDecision | int) -> Terms | tuple[Terms, ...]:
        """Return the terms of the bound with which an open or remembered decision was chosen; of a panel, G of them."""
        wanted = _id_of(decision)
        if wanted in self._open:
            return self._find_open(decision).terms
        for told in self._told:
            if told.decision.id == wanted:
                return told.terms
        raise DecisionError(f"decision {wanted} is neither open nor among the last {len(self._told)} told")

    @property
    def open(self) -> tuple[Decision | PanelDecision, ...]:
        """Decisions whose reward is still to come, oldest first."""
        return tuple(slot.decision for slot in self._open.values())

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
        """Resume bit for bit from what `save` wrote, with the settings it was saved with."""
        return cls._loaded(path, None)

    def resumed(self, path: str | Path) -> Self:
        """Resume from what `save` wrote, with this router's settings; SettingsError where the state cannot do that."""
        return self._loaded(path, json.loads(json.dumps(self._settings)))

    @classmethod
    def _loaded(cls, path: str | Path, asked: dict[str, Any] | None) -> Self:
        """Read a state; a copy plays a slot first, to see that it can."""
        header, arrays = read_state(path)
        if header.get("kind") != cls.kind:
            raise StateError(
                f"{path} holds a {header.get('kind')!r} router, not {cls.kind!r}; load it with its own class"
            )
        try:
            if asked is not None:
                check_kept(settings_of(header), asked, source=path, may_change=cls.may_change)
                header["settings"] = asked
            with np.errstate(divide="raise", invalid="raise"):
                cls._restored(header, arrays)._play()
            return cls._restored(header, arrays)
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
        settings = settings_of(header)
        held, least = sum(array.size for array in arrays.values()), cls.least_numbers(settings)
        if held < least:
            raise StateError(f"its settings speak of {least} numbers, it holds {held}")
        router = cls(**settings)
        policy = {k.removeprefix("policy."): v for k, v in arrays.items() if k.startswith("policy.")}
        start = router._policy.state
        policy = migrated(policy, to_arrays(start), int(header.get("layout", 1)))
        router._policy.restore(from_arrays(start, policy))
        router._rng.bit_generator.state = header["random"]
        router._next_id = int(header["next_id"])
        told, open_ = unpack(arrays, experts=router.experts, tasks=router.tasks)
        router._told.extend(told)
        router._open = {slot.decision.id: slot for slot in open_}
        return router

    def _play(self) -> None:
        """Ask, and tell all that is open."""
        AskTell.ask(self, np.full(self.tasks, 1.0 / self.tasks))
        for slot in list(self._open.values()):
            rows = slot.blends.shape[:1] if isinstance(slot.decision, PanelDecision) else ()
            AskTell.tell(self, slot.decision, np.full((*rows, self.tasks), 0.5))
        self._policy.view()

    def _find_open(self, decision: Decision | PanelDecision | int) -> Open:
        wanted = _id_of(decision)
        found = self._open.get(wanted)
        if found is None:
            known = 0 <= wanted < self._next_id
            raise DecisionError(
                f"decision {wanted} {'was told already' if known else 'was never asked of this router'}"
            )
        if not isinstance(decision, int | np.integer) and not (
            type(decision) is type(found.decision)
            and np.array_equal(Open(decision, ()).blends, found.blends)
            and np.array_equal(decision.task_mix, found.decision.task_mix)
        ):
            raise DecisionError(f"decision {wanted} is another router's: its blend or task mix differs from this one's")
        return found


class _Rewards(NamedTuple):
    reward: FloatArray  # (V,) or (G, V)
    counts: FloatArray


def _read_only(rows: ArrayLike) -> FloatArray:
    table = np.array(rows, dtype=np.float64)
    table.setflags(write=False)
    return table


def _id_of(decision: Decision | PanelDecision | int) -> int:
    wanted = decision.id if isinstance(decision, Decision | PanelDecision) else decision
    if not isinstance(wanted, int | np.integer) or isinstance(wanted, bool):
        raise DecisionError(f"a decision or its id is needed (got {type(decision).__name__})")
    return int(wanted)
