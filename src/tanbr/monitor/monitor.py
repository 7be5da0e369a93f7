"""The monitor: untagged requests in, the task mix ψ of the coming slot out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from tanbr.errors import InputError, StateError
from tanbr.monitor.clusters import Clusters
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.features import COARSE, Features, check, read
from tanbr.monitor.quantify import familiar_counts, prevalence, unknown_share
from tanbr.monitor.recogniser import Recogniser
from tanbr.monitor.slot import Slot
from tanbr.monitor.smooth import Forecaster
from tanbr.state import check_alike, read_state, write_state
from tanbr.types import FloatArray, SlotMix, Text

Method = Literal["sketch", "clusters", "tags"]
BATCH = 1024  # requests worked on at once, which bounds the memory


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
        self._recogniser = Recogniser(len(self.tasks), self.config)
        self._clusters = Clusters(len(self.tasks), self.config)
        self._slot = Slot(len(self.tasks), self.config.slot_sample)
        self._forecaster = Forecaster(len(self.tasks), self.config)

    def learn(self, texts: Sequence[Text], tasks: Sequence[str]) -> None:
        """Take in texts whose tasks are known: the history at the start, and feedback however late."""
        if self.method != "sketch":
            raise InputError(f"method {self.method!r} does not learn from labels; build the monitor with 'sketch'")
        if len(texts) != len(tasks):
            raise InputError(f"texts and tasks must be of one length (got {len(texts)} and {len(tasks)})")
        indices = np.array([self._task(task) for task in tasks], dtype=np.int64)
        for features, part in _batches(texts):
            self._recogniser.learn(features, indices[part])

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
        return self.observe_novelty(texts, tags, embeddings=embeddings)[0]

    def observe_novelty(
        self,
        texts: Sequence[Text],
        tags: Sequence[str | None] | None = None,
        *,
        embeddings: ArrayLike | None = None,
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Observe, and also tell whether each request is unlike any task: (n, V), (n,)."""
        novel = np.zeros(len(texts), dtype=np.bool_)
        known = self._known(tags, len(texts))
        vectors = self._vectors(embeddings, len(texts))
        result = np.tile(self._forecaster.mix, (len(texts), 1))
        result[known >= 0] = np.eye(len(self.tasks))[known[known >= 0]]
        for features, part in _batches(texts):
            untagged = np.flatnonzero(known[part] < 0)
            if self.method == "clusters":
                batch = features.surface[:, COARSE] if vectors is None else vectors[part]
                self._clusters.add(features.keys, batch)
                answer = self._clusters.read(batch[untagged]) if self._clusters.ready else None
            elif self._recogniser.ready and len(untagged):
                answer = self._recogniser.read(features if len(untagged) == len(features) else features.take(untagged))
            else:
                answer = None
            self._slot.add_tagged(known[part][known[part] >= 0])
            if answer is None:
                self._slot.skip(len(untagged))
            else:
                self._slot.add(features.keys[untagged], *answer)
                result[part.start + untagged], novel[part.start + untagged] = answer
        return result, novel

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
        self._slot = Slot(len(self.tasks), self.config.slot_sample)
        self._recogniser.refresh()
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
        self._recogniser.merge(other._recogniser)
        self._slot.merge(other._slot)
        self._forecaster.merge(other._forecaster)

    def save(self, path: str | Path) -> None:
        """Write the whole state atomically, the open slot too."""
        description = {"tasks": self.tasks, "method": self.method, "config": self.config.model_dump(mode="json")}
        write_state(path, description, self._arrays(), compress=True)  # counters are mostly 0

    @classmethod
    def load(cls, path: str | Path, *, config: MonitorConfig | None = None) -> "Monitor":
        """Read a state that `save` wrote; with `config`, refuse one of another configuration."""
        description, arrays = read_state(path)
        try:
            saved = MonitorConfig.model_validate(description["config"])
            monitor = cls(description["tasks"], description["method"], config=saved)
        except (KeyError, TypeError, ValidationError, InputError):
            raise StateError(f"{path} is damaged, or from another version of the monitor") from None
        if config is not None and config != saved:
            odd = next(name for name in MonitorConfig.model_fields if getattr(config, name) != getattr(saved, name))
            raise StateError(f"{path} was saved with {odd} = {getattr(saved, odd)} (expected {getattr(config, odd)})")
        check_alike(arrays, monitor._arrays(), path)
        for name, part in monitor._parts().items():
            prefix = f"{name}."
            part.restore({key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)})
        return monitor

    def _parts(self) -> dict[str, Recogniser | Clusters | Slot | Forecaster]:
        return {
            "recogniser": self._recogniser,
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
        if vectors.ndim != 2 or len(vectors) != requests or not np.isfinite(vectors).all():
            raise InputError(f"embeddings must be {requests} finite vectors (got shape {vectors.shape})")
        return vectors


def _batches(texts: Sequence[Text]) -> Iterator[tuple[Features, slice]]:
    """Read requests batch by batch, once all of them have proved to be texts."""
    check(texts)
    for start in range(0, len(texts), BATCH):
        part = slice(start, min(start + BATCH, len(texts)))
        yield read(texts[part]), part
