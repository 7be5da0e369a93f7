"""The monitor: untagged requests in, the task mix ψ of the coming slot out."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from tanbr.config import check_kept
from tanbr.errors import InputError, StateError
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.features import VIEWS, batches, check
from tanbr.monitor.forecast import Forecast
from tanbr.monitor.knowledge import Knowledge
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.monitor.slot import SlotSample, familiar_counts, prevalence, unknown_share
from tanbr.state import Arrays, compressed, from_arrays, read_state, to_arrays, write_state
from tanbr.types import FloatArray, SlotMix, Text, as_task_mix, frozen

LENGTHS = (  # arrays of a state whose last axes, or first ones, have one length
    ("known.model.", -1, ("known", "tables", "calibration.weights", "calibration.bias", "thresholds")),
    ("known.model.calibration.", -1, ("centre", "scale")),
    ("known.history.", 0, ("features.keys", "features.surface", "tasks", "counts")),
    ("slot.", 0, ("keys", "rows")),
)


@dataclass(frozen=True, eq=False)
class MonitorState:
    """All that a monitor knows. No step changes it or an array in it: a step makes the next state."""

    known: Knowledge
    slot: SlotSample
    forecast: Forecast


class Monitor:
    """Estimates which mix of tasks the traffic holds, once texts of known tasks have taught it; not thread-safe."""

    def __init__(self, tasks: Sequence[str], *, config: MonitorConfig | None = None) -> None:
        if isinstance(tasks, str) or not tasks or len(set(tasks)) != len(tasks):
            raise InputError(f"tasks must be one or more distinct names (got {tasks!r})")
        self.tasks = tuple(tasks)
        self.config = config or MonitorConfig()
        self._index = {name: index for index, name in enumerate(self.tasks)}
        V = len(self.tasks)
        self._state = MonitorState(Knowledge.empty(V), SlotSample.empty(V), Forecast.start(V))
        self._judged: tuple[Any, FloatArray] | None = None  # a fit and its confusion
        self._packed: tuple[Any, Arrays] | None = None  # what is known, and how it is saved

    def fork(self) -> "Monitor":
        """Give a monitor that knows the same and goes its own way from here; nothing is copied."""
        return copy.copy(self)

    def learn(self, texts: Sequence[Text], tasks: Sequence[str]) -> None:
        """Take in texts whose tasks are known; they are used from the next slot on, once they are enough."""
        if len(texts) != len(tasks):
            raise InputError(f"texts and tasks must be of one length (got {len(texts)} and {len(tasks)})")
        odd = next((task for task in tasks if task not in self._index), None)
        if odd is not None:
            raise InputError(f"unknown task {odd!r}; this monitor knows {', '.join(self.tasks)}")
        known, indices = self._state.known, np.array([self._index[task] for task in tasks], dtype=np.int64)
        for features, part in batches(texts, plain=self.config.plain):
            known = known.learn(features, indices[part])
        self._state = replace(self._state, known=known)

    def recalling(self, old: "Monitor") -> "Monitor":
        """Give a monitor that knows what an old one knew of the tasks of both, and what this one knows of others."""
        places = {old._index[name]: here for name, here in self._index.items() if name in old._index}
        twin = self.fork()
        twin._state = replace(self._state, known=self._state.known.recalling(old._state.known, places))
        return twin

    def snapshot(self) -> Recogniser:
        """Give what recognises requests, in any thread; after learning it is fitted first, in about a second."""
        known = self._fitted()
        return Recogniser(self.tasks, self._state.forecast.mix, known.model, plain=self.config.plain)

    def observe(self, texts: Sequence[Text]) -> FloatArray:
        """Take in requests of the open slot; posteriors over the tasks (n, V), the forecast where nothing is known."""
        check(texts)
        seen = self.snapshot().recognise(texts)
        self.count(seen)
        return seen.posteriors

    def count(self, seen: Recognition) -> None:
        """Take in requests of the open slot that a snapshot of this monitor has recognised."""
        if seen.posteriors.shape[1] != len(self.tasks):
            raise InputError(f"requests must be recognised by this monitor, over {len(self.tasks)} tasks")
        slot = self._state.slot
        if seen.informed:
            slot = slot.add(seen.keys, seen.posteriors, seen.novel)
        else:  # nothing is known about them
            slot = replace(slot, requests=slot.requests + len(seen))
        self._state = replace(self._state, slot=slot)

    @property
    def confusion(self) -> FloatArray:
        """Share of each task's texts (rows) taken for each task (columns), (V, V), cross-validated on the history.

        A row of 0 is a task without history. It takes about a second after each fit.
        """
        known = self._fitted()
        if self._judged is None or self._judged[0] is not known.model:
            self._judged = known.model, frozen(known.confusion())
        return self._judged[1]

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the mix of the one that starts."""
        state = self._state
        posteriors, novelty, counts = state.slot.read()
        unknown, alarm = unknown_share(novelty, counts)
        familiar = familiar_counts(novelty, counts, unknown)
        seen = prevalence(posteriors[familiar > 0], familiar[familiar > 0]) if familiar.sum() > 0 else None
        forecast = state.forecast.after(seen)
        self._state = MonitorState(state.known.refreshed(), SlotSample.empty(len(self.tasks)), forecast)
        estimate = forecast.mix if seen is None else seen.mix
        return SlotMix(estimate, forecast.mix, forecast.uncertainty, unknown, state.slot.requests, alarm)

    def save(self, path: str | Path) -> None:
        """Write the whole state atomically, the open slot too; what is known is packed only when it has changed."""
        known = self._state.known
        if known.history.pending:
            known = replace(known, history=known.history.compacted())
        self._state = replace(self._state, known=known, slot=self._state.slot.compacted())
        if self._packed is None or self._packed[0] is not known:
            self._packed = known, compressed(to_arrays(known, "known"))  # counters are mostly 0
        description = {"tasks": self.tasks, "config": self.config.model_dump(mode="json")}
        parts = {"slot": self._state.slot, "forecast": self._state.forecast}
        write_state(path, description, to_arrays(parts) | self._packed[1])

    @classmethod
    def load(cls, path: str | Path, *, config: MonitorConfig | None = None) -> "Monitor":
        """Read a state that `save` wrote; SettingsError if it was made with another `config` than is asked for."""
        description, arrays = read_state(path)
        try:
            saved = MonitorConfig.model_validate(description["config"])
            V = len(description["tasks"])
            if any(arrays[f"known.sketches.{view}.counts"].shape[-1:] != (V,) for view in VIEWS):
                raise InputError(f"its sketches must be of {V} tasks")  # before a monitor of that size is made
            monitor = cls(description["tasks"], config=config or saved)
        except (KeyError, TypeError, ValidationError, InputError) as error:
            reason = str(error).splitlines()[0]
            raise StateError(f"{path} is damaged, or from another version of the monitor ({reason})") from None
        asked = monitor.config.model_dump(mode="json")
        check_kept(saved.model_dump(mode="json"), asked, source=path)
        monitor._state = from_arrays(monitor._state, arrays, sized=True, source=path)
        for prefix, axis, names in LENGTHS:
            if len({arrays[prefix + name].shape[axis] for name in names if prefix + name in arrays}) > 1:
                raise StateError(f"{path} is damaged: {', '.join(names)} of {prefix} must be of one length")
        try:  # what was made up by hand shows here, and not in a server's turn
            trial = monitor.fork()
            trial.observe(["a trial", ("of", "what was read")])
            as_task_mix(trial.close_slot().forecast, tasks=len(monitor.tasks))
        except (ValueError, IndexError, ArithmeticError, np.linalg.LinAlgError) as error:
            raise StateError(f"{path} is damaged: its parts do not fit together ({error})") from None
        return monitor

    def _fitted(self) -> Knowledge:
        """Fit what is not fitted and can be."""
        known = self._state.known.fitted()
        self._state = replace(self._state, known=known)
        return known
