"""The monitor: untagged requests in, the task mix ψ of the coming slot out."""

import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from tanbr.config import MonitorConfig
from tanbr.errors import InputError, OutputError, StateError
from tanbr.monitor.features import Features, read
from tanbr.monitor.quantify import Prevalence, prevalence
from tanbr.monitor.recogniser import Recogniser
from tanbr.monitor.slot import Slot
from tanbr.monitor.smooth import Forecaster
from tanbr.types import FloatArray, SlotMix, Text

Method = Literal["sketch", "clusters", "tags"]
FORMAT = 1  # of the state file
BATCH = 1024  # requests worked on at once, which bounds the memory


class Monitor:
    """Estimates which mix of tasks the traffic holds."""

    def __init__(self, tasks: Sequence[str], method: Method = "sketch", *, config: MonitorConfig | None = None) -> None:
        if method not in get_args(Method):
            raise InputError(f"unknown method {method!r}; choose one of {', '.join(get_args(Method))}")
        if isinstance(tasks, str) or not tasks or len(set(tasks)) != len(tasks):
            raise InputError(f"tasks must be one or more distinct names (got {tasks!r})")
        self.tasks = tuple(tasks)
        self.method = method
        self.config = config or MonitorConfig()
        self._index = {name: index for index, name in enumerate(self.tasks)}
        self._reader = Recogniser(len(self.tasks), self.config)
        self._slot = Slot(len(self.tasks), self.config.slot_sample)
        self._forecaster = Forecaster(
            len(self.tasks),
            gain=self.config.gain,
            reset_sigmas=self.config.reset_sigmas,
            reset_margin=self.config.reset_margin,
            drift=self.config.drift,
        )

    def learn(self, texts: Sequence[Text], tasks: Sequence[str]) -> None:
        """Take in texts whose tasks are known: the history at the start, or feedback that arrives late."""
        if len(texts) != len(tasks):
            raise InputError(f"texts and tasks must be of one length (got {len(texts)} and {len(tasks)})")
        indices = np.array([self._task(task) for task in tasks], dtype=np.int64)
        for batch, part in self._batches(texts):
            self._reader.learn(batch, indices[part])

    def observe(self, texts: Sequence[Text], tags: Sequence[str | None] | None = None) -> FloatArray:
        """Take in requests of the open slot, tagged or not; posteriors (n, V), rows on the simplex."""
        if tags is not None and len(tags) != len(texts):
            raise InputError(f"texts and tags must be of one length (got {len(texts)} and {len(tags)})")
        known = np.array(
            [-1 if tag is None else self._task(tag) for tag in tags or [None] * len(texts)], dtype=np.int64
        )
        result = np.zeros((len(texts), len(self.tasks)))
        result[known >= 0, known[known >= 0]] = 1.0
        self._slot.add_tagged(known[known >= 0])
        untagged = np.flatnonzero(known < 0)
        for batch, part in self._batches([texts[int(index)] for index in untagged]):
            posteriors, novel = self._reader.read(batch)
            self._slot.add(batch.keys, posteriors, novel)
            result[untagged[part]] = posteriors
        return result

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the mix of the one that starts."""
        seen, unknown, alarm = self._assess()
        self._forecaster.update(seen)
        requests = self._slot.requests
        self._slot = Slot(len(self.tasks), self.config.slot_sample)
        self._reader.refresh()
        forecast = self._forecaster.mix
        return SlotMix(
            estimate=forecast if seen is None else seen.mix,
            forecast=forecast,
            uncertainty=self._forecaster.uncertainty,
            unknown=unknown,
            requests=requests,
            alarm=alarm,
        )

    def _assess(self) -> tuple[Prevalence | None, float, bool]:
        """Judge the slot: its mix (None if no request can tell), its unknown share, and whether to sound the alarm."""
        posteriors, novelty, counts = self._slot.read()
        seen = self._slot.requests
        unknown, alarm = 0.0, False
        if seen:
            expected = self.config.unknown_quantile
            rate = float(novelty @ counts / max(counts.sum(), 1.0)) * (1 - self._slot.tagged.sum() / seen)
            unknown = max(rate - expected, 0.0) / (1 - expected)
            spread = np.sqrt(max(rate * (1 - rate), expected) / max(counts.sum(), 1.0))
            alarm = bool(unknown - self.config.alarm_sigmas * spread > self.config.alarm_share)
        counts = counts * (1 - novelty)
        if counts.sum() + self._slot.tagged.sum() == 0:
            return None, unknown, alarm
        mix = prevalence(
            posteriors[counts > 0],
            counts[counts > 0],
            self._slot.tagged,
            rounds=self.config.em_rounds,
            tolerance=self.config.em_tolerance,
        )
        return mix, unknown, alarm

    def merge(self, other: "Monitor") -> None:
        """Take in all that another monitor of the same configuration has learned and seen."""
        if (self.tasks, self.method, self.config) != (other.tasks, other.method, other.config):
            raise InputError("only monitors with the same tasks, method and configuration can be merged")
        self._reader.merge(other._reader)
        self._slot.merge(other._slot)
        self._forecaster.merge(other._forecaster)

    def save(self, path: str | Path) -> None:
        """Write the whole state atomically."""
        described = {
            "format": FORMAT,
            "tasks": self.tasks,
            "method": self.method,
            "config": self.config.model_dump(mode="json"),
        }
        arrays = {
            f"{name}.{key}": array for name, part in self._parts().items() for key, array in part.arrays().items()
        }
        arrays["described"] = np.array(json.dumps(described))
        path = Path(path)
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            Path(file.name).replace(path)
        except OSError as error:
            raise OutputError(f"cannot write the monitor's state to {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | Path) -> "Monitor":
        """Read a state that `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            described = json.loads(str(arrays.pop("described")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise StateError(f"{path} is not a monitor's state: {error}") from None
        monitor = cls(described["tasks"], described["method"], config=MonitorConfig(**described["config"]))
        for name, part in monitor._parts().items():
            part.restore(
                {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
            )
        return monitor

    def _parts(self) -> dict[str, Recogniser | Slot | Forecaster]:
        return {"reader": self._reader, "slot": self._slot, "forecaster": self._forecaster}

    def _task(self, name: str) -> int:
        if name not in self._index:
            raise InputError(f"unknown task {name!r}; this monitor knows {', '.join(self.tasks)}")
        return self._index[name]

    def _batches(self, texts: Sequence[Text]) -> list[tuple[Features, slice]]:
        parts = [slice(start, start + BATCH) for start in range(0, len(texts), BATCH)]
        return [(read(texts[part]), part) for part in parts]
