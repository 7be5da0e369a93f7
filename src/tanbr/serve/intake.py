"""What was answered, read after the fact: the monitor's posteriors, the server's own rewards, the store's rows."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tanbr.moe.text import TextEncoder
from tanbr.serve.config import ServeConfig
from tanbr.serve.loop import MixSource
from tanbr.serve.messages import Answers
from tanbr.serve.records import ServiceError
from tanbr.serve.rewards import Tally, share_out
from tanbr.serve.shadow import Shadow
from tanbr.serve.store import RequestRow, Store
from tanbr.types import FloatArray, TaskMix

UNREAD = 20_000  # answered requests that may wait to be read; beyond it the oldest go unread


class Intake:
    """Takes batches from the model thread; `read` does the work in the slot thread."""

    def __init__(
        self,
        store: Store,
        *,
        config: ServeConfig,
        encode: TextEncoder,
        shadow: Shadow | None,
        classes: int,
        keep_logits: bool,
        tasks: int,
    ) -> None:
        self._store, self._config, self._encode = store, config, encode
        self._shadow, self._classes, self._keep_logits, self._tasks = shadow, classes, keep_logits, tasks
        self._rng = np.random.default_rng(config.seed)
        self._arrived: deque[Answers] = deque()
        self._unsaved: list[RequestRow] = []
        self._tallies: dict[int, Tally] = {}  # slot → rewards that the server gave itself

    def put(self, served: Answers) -> None:
        """Take a batch that was answered."""
        self._arrived.append(served)

    def read(self, monitor: MixSource, mix: TaskMix, see: Callable[[int, FloatArray, float], None]) -> None:
        """Observe, measure and store what arrived; `see` hears the slot, shares (V,) and reward of a shadowed request.

        A store that fails raises, and its rows are tried again with the next ones.
        """
        served = [self._arrived.popleft() for _ in range(len(self._arrived))]
        while sum(len(batch.ids) for batch in served) > UNREAD:
            del served[0]
        if served:
            posteriors = monitor.observe([text for batch in served for text in batch.texts])
            ends = np.cumsum([len(batch.ids) for batch in served])
            parts = np.split(posteriors, ends[:-1])
            for batch, part in zip(served, parts, strict=True):
                self._unsaved += self._rows(batch, part)
            self._save()
            for batch, part in zip(served, parts, strict=True):
                self._measure(batch, part, mix, see)
        elif self._unsaved:
            self._save()

    def _save(self) -> None:
        rows, self._unsaved = self._unsaved[-UNREAD:], []
        try:
            self._store.add_requests(rows)
        except ServiceError:
            self._unsaved = rows
            raise

    def tally(self, slot: int) -> Tally:
        """Rewards that the server gave itself in a slot: from memory, or from before a restart."""
        if slot not in self._tallies:
            self._tallies[slot] = tally = Tally(self._tasks, self._config.rewards)
            for source, (sums, counts) in self._store.measured(slot).items():
                tally.add(source, sums, counts)
        return self._tallies[slot]

    def forget(self, slot: int) -> None:
        """Drop the rewards of slots up to this one."""
        self._tallies = {number: tally for number, tally in self._tallies.items() if number > slot}

    def _rows(self, batch: Answers, posteriors: FloatArray) -> list[RequestRow]:
        logits = batch.logits if self._keep_logits else None
        return [
            RequestRow(
                id=key,
                version=batch.version,
                time=batch.time,
                posterior=posteriors[i],
                logits=None if logits is None else logits[i],
                text=batch.texts[i] if self._config.store_texts else None,
            )
            for i, key in enumerate(batch.ids)
        ]

    def _measure(
        self, batch: Answers, posteriors: FloatArray, mix: TaskMix, see: Callable[[int, FloatArray, float], None]
    ) -> None:
        """Reward a batch by its confidence, and a few of its requests by the un-merged MoE."""
        weights, slot = self._config.rewards, batch.slot
        if weights.confidence:
            for posterior, confidence in zip(posteriors, batch.confidence, strict=True):
                share = share_out(None, posterior, mix)
                self.tally(slot).add("confidence", confidence * share, share)
        if self._shadow is None:
            return
        chosen = np.flatnonzero(self._rng.random(len(batch.ids)) < weights.shadow_share)
        for i, reward in zip(chosen, self._agreement(self._shadow, batch, posteriors, chosen), strict=True):
            share = share_out(None, posteriors[i], mix)
            self.tally(slot).add("shadow", reward * share, share)
            see(slot, share, reward)

    def _agreement(
        self, shadow: Shadow, batch: Answers, posteriors: FloatArray, chosen: NDArray[np.intp]
    ) -> Sequence[float]:
        """Agreement of the chosen requests' answers with the un-merged MoE's (m,)."""
        if not len(chosen):
            return []
        tasks = posteriors[chosen].argmax(axis=1)
        if batch.logits is not None:
            labels = shadow.labels(self._encode([batch.texts[i] for i in chosen]), tasks, self._classes)
            answers = batch.logits[chosen, : self._classes].argmax(axis=1)
            return [float(same) for same in answers == labels]
        tokens = batch.tokens or ()
        return [
            shadow.agreement(self._encode([batch.texts[i]]), tokens[i], int(task))
            for i, task in zip(chosen, tasks, strict=True)
        ]
