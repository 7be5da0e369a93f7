"""The monitor: untagged requests in, the task mix ψ of the coming slot out."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tanbr.config import check_kept
from tanbr.errors import InputError, StateError
from tanbr.monitor.clusters import DIMENSIONS, Clustering
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.features import COARSE, VIEWS, batches
from tanbr.monitor.forecast import Forecast
from tanbr.monitor.knowledge import Knowledge
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.monitor.slot import SlotSample, familiar_counts, prevalence, unknown_share
from tanbr.state import Arrays, compressed, from_arrays, read_state, to_arrays, write_state
from tanbr.types import FloatArray, SlotMix, Text, as_task_mix, frozen

Method = Literal["sketch", "clusters"]
LENGTHS = (  # arrays of a state whose last axes, or first ones, have one length
    ("known.model.", -1, ("known", "tables", "calibration.weights", "calibration.bias", "thresholds")),
    ("known.model.calibration.", -1, ("centre", "scale")),
    ("known.history.", 0, ("features.keys", "features.surface", "tasks", "counts")),
    ("known.", 0, ("keys", "vectors")),
    ("known.model.", -1, ("centre", "scale", "means", "variances")),
    ("slot.", 0, ("keys", "rows")),
)


@dataclass(frozen=True, eq=False)
class MonitorState:
    """All that a monitor knows. No step changes it or an array in it: a step makes the next state."""

    known: Knowledge | Clustering  # by the method
    slot: SlotSample
    forecast: Forecast


class Monitor:
    """Estimates which mix of tasks the traffic holds; not thread-safe.

    `sketch` learns the tasks from labelled history, `clusters` finds latent tasks in traffic without any label.
    """

    def __init__(self, tasks: Sequence[str], method: Method = "sketch", *, config: MonitorConfig | None = None) -> None:
        if method not in get_args(Method):
            raise InputError(f"unknown method {method!r}; choose one of {', '.join(get_args(Method))}")
        if isinstance(tasks, str) or not tasks or len(set(tasks)) != len(tasks):
            raise InputError(f"tasks must be one or more distinct names (got {tasks!r})")
        self.tasks = tuple(tasks)
        self.method = method
        self.config = config or MonitorConfig()
        self._index = {name: index for index, name in enumerate(self.tasks)}
        V = len(self.tasks)
        known = Knowledge.empty(V) if method == "sketch" else Clustering.empty(V)
        self._state = MonitorState(known, SlotSample.empty(V), Forecast.start(V))
        self._judged: tuple[Any, FloatArray] | None = None  # a fit and its confusion
        self._packed: tuple[Any, Arrays] | None = None  # what is known, and how it is saved

    def fork(self) -> "Monitor":
        """Give a monitor that knows the same and goes its own way from here; nothing is copied."""
        return copy.copy(self)

    @property
    def learns(self) -> bool:
        """Whether `learn` teaches it anything."""
        return isinstance(self._state.known, Knowledge)

    def learn(self, texts: Sequence[Text], tasks: Sequence[str]) -> None:
        """Take in texts whose tasks are known; they are used from the next slot on, once they are enough."""
        known = self._state.known
        if not isinstance(known, Knowledge):
            raise InputError(f"method {self.method!r} does not learn from labels; build the monitor with 'sketch'")
        if len(texts) != len(tasks):
            raise InputError(f"texts and tasks must be of one length (got {len(texts)} and {len(tasks)})")
        odd = next((task for task in tasks if task not in self._index), None)
        if odd is not None:
            raise InputError(f"unknown task {odd!r}; this monitor knows {', '.join(self.tasks)}")
        indices = np.array([self._index[task] for task in tasks], dtype=np.int64)
        for features, part in batches(texts, plain=self.config.plain):
            known = known.learn(features, indices[part])
        self._state = replace(self._state, known=known)

    def recalling(self, old: "Monitor") -> "Monitor":
        """Give a monitor that knows what an old one knew of the tasks of both, and what this one knows of others."""
        mine, theirs = self._state.known, old._state.known
        places = {old._index[name]: here for name, here in self._index.items() if name in old._index}
        twin = self.fork()
        if isinstance(mine, Knowledge) and isinstance(theirs, Knowledge):
            twin._state = replace(self._state, known=mine.recalling(theirs, places))
        return twin

    def snapshot(self) -> Recogniser:
        """Give what recognises requests, in any thread; after learning it is fitted first, in about a second."""
        known = self._fitted()
        return Recogniser(self.tasks, self._state.forecast.mix, known.model, plain=self.config.plain)

    def observe(self, texts: Sequence[Text]) -> FloatArray:
        """Take in requests of the open slot; posteriors over the tasks (n, V), the forecast where nothing is known."""
        results = []
        for features, _ in batches(texts, plain=self.config.plain):
            self._cluster(features.keys, features.surface[:, COARSE])  # these may be those that make clusters possible
            seen = self.snapshot().read(features)
            self._count(seen)
            results.append(seen.posteriors)
        return np.concatenate(results)

    def count(self, seen: Recognition) -> None:
        """Take in requests of the open slot that a snapshot of this monitor has recognised."""
        expected = len(self.tasks), 0 if self.learns else DIMENSIONS
        if (seen.posteriors.shape[1], seen.vectors.shape[1]) != expected:
            raise InputError(f"requests must be recognised by this monitor, over {len(self.tasks)} tasks")
        self._cluster(seen.keys, seen.vectors)
        self._count(seen)

    @property
    def confusion(self) -> FloatArray:
        """Share of each task's texts (rows) taken for each task (columns), (V, V), cross-validated on the history.

        A row of 0 is a task without history. It takes about a second after each fit.
        """
        known = self._fitted()
        if self._judged is None or self._judged[0] is not known.model:
            nothing = np.zeros((len(self.tasks), len(self.tasks)))
            self._judged = known.model, frozen(known.confusion() if isinstance(known, Knowledge) else nothing)
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
        if isinstance(known, Knowledge) and known.history.pending:
            known = replace(known, history=known.history.compacted())
        self._state = replace(self._state, known=known, slot=self._state.slot.compacted())
        if self._packed is None or self._packed[0] is not known:
            self._packed = known, compressed(to_arrays(known, "known"))  # counters are mostly 0
        description = {"tasks": self.tasks, "method": self.method, "config": self.config.model_dump(mode="json")}
        parts = {"slot": self._state.slot, "forecast": self._state.forecast}
        write_state(path, description, to_arrays(parts) | self._packed[1])

    @classmethod
    def load(cls, path: str | Path, *, config: MonitorConfig | None = None) -> "Monitor":
        """Read a state that `save` wrote; SettingsError if it was made with another `config` than is asked for."""
        description, arrays = read_state(path)
        try:
            saved = MonitorConfig.model_validate(description["config"])
            V, views = len(description["tasks"]), VIEWS if description["method"] == "sketch" else ()
            if any(arrays[f"known.sketches.{view}.counts"].shape[-1:] != (V,) for view in views):
                raise InputError(f"its sketches must be of {V} tasks")  # before a monitor of that size is made
            monitor = cls(description["tasks"], description["method"], config=config or saved)
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

    def _fitted(self) -> Knowledge | Clustering:
        """Fit what is not fitted and can be."""
        known = self._state.known.fitted()
        self._state = replace(self._state, known=known)
        return known

    def _cluster(self, keys: NDArray[np.uint64], vectors: FloatArray) -> None:
        known = self._state.known
        if isinstance(known, Clustering):
            self._state = replace(self._state, known=known.add(keys, vectors))

    def _count(self, seen: Recognition) -> None:
        slot = self._state.slot
        if seen.informed:
            slot = slot.add(seen.keys, seen.posteriors, seen.novel)
        else:  # nothing is known about them
            slot = replace(slot, requests=slot.requests + len(seen))
        self._state = replace(self._state, slot=slot)
