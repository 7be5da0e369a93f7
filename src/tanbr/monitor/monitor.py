"""The monitor: untagged requests in, the task mix ψ of the coming slot out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from tanbr.config import check_kept
from tanbr.errors import InputError, StateError
from tanbr.monitor.bounds import bounded
from tanbr.monitor.clusters import Clusters
from tanbr.monitor.config import MAY_CHANGE, MonitorConfig
from tanbr.monitor.features import COARSE, VIEWS, batches
from tanbr.monitor.forecast import Forecaster
from tanbr.monitor.knowledge import Knowledge
from tanbr.monitor.quantify import familiar_counts, prevalence, unknown_share
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.monitor.slot_sample import SlotSample
from tanbr.state import check_alike, read_state, write_state
from tanbr.types import FloatArray, SlotMix, Text

Method = Literal["sketch", "clusters", "tags"]
_FITTED = ("recogniser.classifier.", "clusters.groups.")  # parts of a state that follow from the rest


class Monitor:
    """Estimates which mix of tasks the traffic holds.

    `sketch` learns the tasks from labelled history, `clusters` groups traffic into latent tasks without any label,
    `tags` trusts the clients' tags alone. Tagged requests count as tagged with every method. Not thread-safe.
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
        self._knowledge = Knowledge(len(self.tasks), self.config)
        self._clusters = Clusters(len(self.tasks), self.config)
        self._slot = SlotSample(len(self.tasks), self.config.slot_sample)
        self._forecaster = Forecaster(len(self.tasks), self.config)

    @property
    def learns(self) -> bool:
        """Whether `learn` teaches it anything."""
        return self.method == "sketch"

    def learn(self, texts: Sequence[Text], tasks: Sequence[str]) -> None:
        """Take in texts whose tasks are known: the history at the start, and late labels at any time.

        Costs as much as observing them. What is new is used from the next slot on, once it is a quarter of the history.
        """
        if not self.learns:
            raise InputError(f"method {self.method!r} does not learn from labels; build the monitor with 'sketch'")
        if len(texts) != len(tasks):
            raise InputError(f"texts and tasks must be of one length (got {len(texts)} and {len(tasks)})")
        indices = np.array([self._task(task) for task in tasks], dtype=np.int64)
        for features, part in batches(texts, plain=self.config.plain):
            self._knowledge.learn(features, indices[part])

    def snapshot(self) -> Recogniser:
        """Give what recognises requests before they are answered; any thread may use it, until the next one is taken.

        The first one after learning is fitted here, which takes about a second for 8 × 500 texts.
        """
        model = self._clusters.groups if self.method == "clusters" else self._knowledge.classifier
        grouped = self.method == "clusters"
        return Recogniser(self.tasks, self._forecaster.mix, model, grouped=grouped, plain=self.config.plain)

    def observe(
        self,
        texts: Sequence[Text],
        tags: Sequence[str | None] | None = None,
        *,
        embeddings: ArrayLike | None = None,
    ) -> FloatArray:
        """Take in requests of the open slot; posteriors over the tasks (n, V), each on the simplex.

        `tags` names the task of the requests whose client sent one. `embeddings` (n, D) are what `clusters` groups
        instead of surface features. A request nothing is known about gets the forecast as its posterior.
        """
        known = self._known(tags, len(texts))
        vectors = self._vectors(embeddings, len(texts))
        results = []
        for features, part in batches(texts, plain=self.config.plain):
            batch = None if vectors is None else vectors[part]
            if self.method == "clusters":
                self._clusters.add(features.keys, features.surface[:, COARSE] if batch is None else batch)
            seen = self.snapshot().read(features, batch)
            self._count(seen, known[part])
            results.append(seen.posteriors)
        result = np.concatenate(results)
        result[known >= 0] = np.eye(len(self.tasks))[known[known >= 0]]
        return result

    def count(self, seen: Recognition, tags: Sequence[str | None] | None = None) -> None:
        """Take in requests of the open slot that a snapshot of this monitor has recognised."""
        known = self._known(tags, len(seen))
        if seen.posteriors.shape[1] != len(self.tasks):
            raise InputError(f"posteriors must be over {len(self.tasks)} tasks (got {seen.posteriors.shape[1]})")
        if self.method == "clusters":
            self._clusters.add(seen.keys, seen.vectors)
        self._count(seen, known)

    def _count(self, seen: Recognition, known: NDArray[np.int64]) -> None:
        untagged = known < 0
        self._slot.add_tagged(known[~untagged])
        if seen.informed:
            self._slot.add(seen.keys[untagged], seen.posteriors[untagged], seen.novel[untagged])
        else:
            self._slot.skip(int(untagged.sum()))

    @property
    def confusion(self) -> FloatArray:
        """Share of each task's texts (rows) taken for each task (columns), (V, V), cross-validated on the history.

        A row of 0 is a task without history. Worked out when first asked for after a fit: about a second.
        """
        return self._knowledge.confusion

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the mix of the one that starts."""
        posteriors, novelty, counts = self._slot.read()
        tagged = float(self._slot.tagged.sum())
        unknown, alarm = unknown_share(novelty, counts, self.config)
        familiar = familiar_counts(novelty, counts, unknown)
        seen = None
        if familiar.sum() + tagged > 0:
            seen = prevalence(posteriors[familiar > 0], familiar[familiar > 0], self._slot.tagged, self.config)
        self._forecaster.update(seen)
        requests = self._slot.requests
        self._slot = SlotSample(len(self.tasks), self.config.slot_sample)
        self._knowledge.refresh()
        self._clusters.refresh()
        forecast = self._forecaster.mix
        return SlotMix(
            estimate=forecast if seen is None else seen.mix,
            forecast=forecast,
            uncertainty=self._forecaster.uncertainty,
            unknown=unknown * float(counts.sum()) / max(float(counts.sum()) + tagged, 1.0),
            requests=requests,
            alarm=alarm,
        )

    def merge(self, other: "Monitor") -> None:
        """Take in all that another monitor has learned, and the requests of its open slot.

        What was learned and the open slots add up: the result is that of one monitor that saw both. Forecasts of
        slots that were closed apart are averaged by the requests behind them.
        """
        if (self.tasks, self.method, self.config) != (other.tasks, other.method, other.config):
            raise InputError("only monitors of the same tasks, method and configuration can be merged")
        self._clusters.merge(other._clusters)  # first, as it alone may refuse: vectors of another model
        self._knowledge.merge(other._knowledge)
        self._slot.merge(other._slot)
        self._forecaster.merge(other._forecaster)

    def save(self, path: str | Path) -> None:
        """Write the whole state atomically, the open slot too."""
        description = {"tasks": self.tasks, "method": self.method, "config": self.config.model_dump(mode="json")}
        write_state(path, description, self._arrays(), compress=True)  # counters are mostly 0

    @classmethod
    def load(cls, path: str | Path, *, config: MonitorConfig | None = None) -> "Monitor":
        """Read a state that `save` wrote, to go on with `config`, or with its own if None.

        SettingsError for what it cannot go on with. Where anything changed, classifier and groups are fitted anew.
        """
        description, arrays = read_state(path)
        try:
            saved = MonitorConfig.model_validate(description["config"])
            for view in VIEWS:  # before a monitor of that size is made
                size = saved.sketch_rows, saved.sketch_width, len(description["tasks"])
                if arrays[f"recogniser.sketch.{view}"].shape != size:
                    raise StateError(f"{path} is damaged: 'recogniser.sketch.{view}' must be of shape {size}")
            if config is not None:
                asked = config.model_dump(mode="json")
                check_kept(saved.model_dump(mode="json"), asked, source=path, may_change=MAY_CHANGE)
            monitor = cls(description["tasks"], description["method"], config=config or saved)
        except (KeyError, TypeError, ValidationError, InputError):
            raise StateError(f"{path} is damaged, or from another version of the monitor") from None
        fresh = monitor._arrays()
        if monitor.config != saved or not any(name.startswith(_FITTED) for name in arrays):  # fitted when next needed
            arrays |= {name: array for name, array in fresh.items() if name.startswith(_FITTED)}
        check_alike(arrays, fresh, path)
        try:
            for name, part in monitor._parts().items():
                own = f"{name}."
                part.restore({key.removeprefix(own): array for key, array in arrays.items() if key.startswith(own)})
        except ValueError as error:
            raise StateError(f"{path} is damaged: {error}; restore it from a copy") from None
        return monitor

    def _parts(self) -> dict[str, Knowledge | Clusters | SlotSample | Forecaster]:
        return {
            "recogniser": self._knowledge,  # its name in states since the first version
            "clusters": self._clusters,
            "slot": self._slot,
            "forecaster": self._forecaster,
        }

    def _arrays(self) -> dict[str, NDArray[np.generic]]:
        return {f"{name}.{key}": array for name, part in self._parts().items() for key, array in part.arrays().items()}

    def _task(self, name: str) -> int:
        if name not in self._index:
            raise InputError(f"unknown task {name!r}; this monitor knows {', '.join(self.tasks)}")
        return self._index[name]

    def _known(self, tags: Sequence[str | None] | None, requests: int) -> NDArray[np.int64]:
        """Index of each request's tag (n,), -1 without one."""
        if tags is None:
            return np.full(requests, -1)
        if len(tags) != requests:
            raise InputError(f"texts and tags must be of one length (got {requests} and {len(tags)})")
        return np.array([-1 if tag is None else self._task(tag) for tag in tags], dtype=np.int64)

    def _vectors(self, embeddings: ArrayLike | None, requests: int) -> FloatArray | None:
        if embeddings is None:
            return None
        if self.method != "clusters":
            raise InputError(f"embeddings are for the method 'clusters' (this monitor's is {self.method!r})")
        vectors = np.asarray(embeddings, dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != requests or not bounded(vectors):
            raise InputError(f"embeddings must be {requests} finite vectors (got shape {vectors.shape})")
        return vectors
