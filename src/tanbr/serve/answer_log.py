"""What was answered: at hand at once for feedback, read after the fact for the monitor, shadows and the store."""

import threading
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tanbr.loop.rewards import SHADOW
from tanbr.moe.text import TextEncoder
from tanbr.monitor import Monitor
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.serve.config import ServeConfig
from tanbr.serve.panel import Answers, believed
from tanbr.serve.records import ServiceError
from tanbr.serve.shadow import Shadow
from tanbr.serve.store import FeedbackRow, RequestRow, Store
from tanbr.types import FloatArray, Text

RECENT = 20_000  # answered requests that are kept at hand, and that may wait to be read; the oldest go first
CHARACTERS = 16 << 20  # of their texts
TOGETHER = 512  # texts that are recognised at once


class AnswerLog:
    """Takes batches from the thread that answers; `read` does the work in the learner's."""

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
        self.held = Counter[tuple[int, int]]()  # by slot and place of a model: requests that it has answered
        self.answered = 0  # requests since the process started
        self._store, self._config, self._encode = store, config, encode
        self._shadow, self._classes, self._keep_logits, self.tasks = shadow, classes, keep_logits, tasks
        self._rng = np.random.default_rng(config.seed)
        self._lock = threading.Lock()
        self._recent: deque[Answers] = deque()
        self._characters = 0  # of the recent ones' texts
        self._place: dict[bytes, tuple[Answers, int]] = {}  # id → where it is among the recent ones
        self._unread: deque[Answers] = deque()
        self._waiting = 0  # requests that are unread
        self._unsaved: list[RequestRow] = []
        self._shadowed: list[FeedbackRow] = []  # rewards that are not yet in the store

    # --- called by other threads ------------------------------------------------------------------------------------

    def put(self, served: Answers) -> int:
        """Take a batch that was answered; how many requests its slot has held so far."""
        with self._lock:
            self._recent.append(served)
            self._place.update((key, (served, row)) for row, key in enumerate(served.ids))
            self._characters += _characters(served)
            while (len(self._place) > RECENT or self._characters > CHARACTERS) and len(self._recent) > 1:
                oldest = self._recent.popleft()
                self._characters -= _characters(oldest)
                for key in oldest.ids:
                    self._place.pop(key, None)
            self._unread.append(served)
            self._waiting += len(served.ids)
            while self._waiting > RECENT and len(self._unread) > 1:
                self._waiting -= len(self._unread.popleft().ids)
            self.answered += len(served.ids)
            self.held[served.slot, served.place] += len(served.ids)
        return self.held_by(served.slot)

    def held_by(self, slot: int) -> int:
        """How many requests the models of a slot have answered."""
        return sum(count for (number, _), count in list(self.held.items()) if number == slot)

    def logits_of(self, ids: Sequence[bytes]) -> dict[bytes, FloatArray]:
        """Look up the logits (columns,) of answered requests: of the recent ones here, of others in the store."""
        if not self._keep_logits:
            return {}
        recent = self._recent_of(ids)
        known = {key: batch.logits[row] for key, (batch, row) in recent.items() if batch.logits is not None}
        missing = [key for key in ids if key not in known]
        return known | (self._store.logits_of(missing) if missing else {})

    def texts_of(self, ids: Sequence[bytes]) -> dict[bytes, Text]:
        """Look up the texts of requests, as far as they are at hand."""
        return {key: batch.texts[row] for key, (batch, row) in self._recent_of(ids).items()}

    def _recent_of(self, ids: Sequence[bytes]) -> dict[bytes, tuple[Answers, int]]:
        with self._lock:
            return {key: self._place[key] for key in ids if key in self._place}

    # --- called by the learner --------------------------------------------------------------------------------------

    def read(self, monitor: Monitor) -> Exception | None:
        """Let the monitor count what arrived, shadow a few requests, store all of it; what failed last.

        What fails is tried again with what comes next.
        """
        error: Exception | None = None
        unread: list[Answers] = []
        snapshot = monitor.snapshot()  # if this raises, nothing was taken yet
        with self._lock:
            served, self._unread, self._waiting = self._unread, deque(), 0
        together = _recognised(snapshot, [batch for batch in served if batch.seen is None])
        for batch in served:
            unread.append(batch)
            try:
                seen = batch.seen or together.get(id(batch)) or snapshot.recognise(batch.texts)
                seen = seen if batch.named is None else believed(seen, batch.named)
                monitor.count(seen)
                unread.pop()
                kept = batch.logits if self._keep_logits and batch.logits is not None else [None] * len(batch.ids)
                novel = seen.novel.tolist()
                self._unsaved += map(RequestRow, batch.ids, seen.posteriors, kept, novel)
                self._shadow_some(batch, seen)
            except Exception as raised:  # a text, the monitor, a shadow
                error = raised
        with self._lock:
            self._unread.extendleft(reversed(unread))
            self._waiting += sum(len(batch.ids) for batch in unread)
        self._unsaved, self._shadowed = self._unsaved[-RECENT:], self._shadowed[-RECENT:]
        try:
            if self._unsaved:
                self._store.add_requests(self._unsaved)
                self._unsaved = []
            if self._shadowed:
                self._store.add_feedback(self._shadowed)
                self._shadowed = []
        except ServiceError as raised:
            error = raised
        return error

    def forget(self, slot: int) -> None:
        """Forget how many requests the slots up to this one held: the router was told them."""
        with self._lock:
            for place in [place for place in self.held if place[0] < slot - 1]:  # what was on its way may yet come
                del self.held[place]

    def _shadow_some(self, batch: Answers, seen: Recognition) -> None:
        """Reward a few of a batch's requests by the un-merged MoE; not what is novel."""
        if self._shadow is None or (batch.logits is None and batch.tokens is None):
            return
        drawn = self._rng.random(len(batch.ids)) < self._config.rewards.shadow_share
        chosen = np.flatnonzero(drawn & ~seen.novel)
        rewards = self._agreement(self._shadow, batch, seen.posteriors, chosen)
        self._shadowed += [FeedbackRow(batch.ids[i], SHADOW, None, r) for i, r in zip(chosen, rewards, strict=True)]

    def _agreement(
        self, shadow: Shadow, batch: Answers, posteriors: FloatArray, chosen: NDArray[np.intp]
    ) -> Sequence[float]:
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


def _recognised(snapshot: Recogniser, served: Sequence[Answers]) -> dict[int, Recognition]:
    """Recognise batches together, by their ids: a thousand replicas send many small ones. Empty where that fails."""
    texts = [text for batch in served for text in batch.texts]
    try:
        seen = [snapshot.recognise(texts[start : start + TOGETHER]) for start in range(0, len(texts), TOGETHER)]
        whole, ends = Recognition.concatenate(seen), np.cumsum([len(batch.texts) for batch in served])
    except Exception:  # whatever it is, it is one text's: its batch meets it again, and the others do not
        return {}
    return {id(one): whole.rows(slice(end - len(one.texts), end)) for one, end in zip(served, ends, strict=True)}


def _characters(served: Answers) -> int:
    return sum(len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in served.texts)
