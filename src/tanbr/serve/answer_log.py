"""What was answered: at hand at once for feedback, read after the fact for the monitor and the store."""

import threading
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from tanbr.monitor import Monitor
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.serve.panel import Answers, believed
from tanbr.serve.records import ServiceError
from tanbr.serve.store import RequestRow, Store
from tanbr.types import FloatArray, Text

RECENT = 20_000  # answered requests that are kept at hand, and that may wait to be read; the oldest go first
CHARACTERS = 16 << 20  # of their texts
TOGETHER = 512  # texts that are recognised at once


class AnswerLog:
    """Takes batches from the thread that answers; `read` does the work in the learner's."""

    def __init__(self, store: Store, *, keep_logits: bool, tasks: int) -> None:
        self.held = Counter[tuple[int, int]]()  # by slot and place of a model: requests that it has answered
        self.answered = 0  # requests since the process started
        self._store, self._keep_logits, self.tasks = store, keep_logits, tasks
        self._lock = threading.Lock()
        self._recent: deque[Answers] = deque()
        self._characters = 0  # of the recent ones' texts
        self._place: dict[bytes, tuple[Answers, int]] = {}  # id → where it is among the recent ones
        self._unread = 0  # batches, the newest of the recent ones
        self._unsaved: list[RequestRow] = []

    # --- called by other threads ------------------------------------------------------------------------------------

    def put(self, served: Answers) -> int:
        """Take a batch that was answered; how many requests its slot has held so far."""
        with self._lock:
            self._recent.append(served)
            self._unread += 1
            self._place.update((key, (served, row)) for row, key in enumerate(served.ids))
            self._characters += _characters(served)
            while (len(self._place) > RECENT or self._characters > CHARACTERS) and len(self._recent) > 1:
                oldest = self._recent.popleft()
                self._characters -= _characters(oldest)
                for key in oldest.ids:
                    self._place.pop(key, None)
            self._unread = min(self._unread, len(self._recent))
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
        recent = self.recent(ids)
        known = {key: batch.logits[row] for key, (batch, row) in recent.items() if batch.logits is not None}
        missing = [key for key in ids if key not in known]
        return known | (self._store.logits_of(missing) if missing else {})

    def texts_of(self, ids: Sequence[bytes]) -> dict[bytes, Text]:
        """Look up the texts of requests, as far as they are at hand."""
        return {key: batch.texts[row] for key, (batch, row) in self.recent(ids).items()}

    def recent(self, ids: Sequence[bytes]) -> dict[bytes, tuple[Answers, int]]:
        """Look up requests that are at hand: the batch that each was answered in, and its row."""
        with self._lock:
            return {key: self._place[key] for key in ids if key in self._place}

    # --- called by the learner --------------------------------------------------------------------------------------

    def read(self, monitor: Monitor) -> Exception | None:
        """Let the monitor count what arrived, and store it; what failed last. What is not stored is tried again."""
        error: Exception | None = None
        snapshot = monitor.snapshot()  # if this raises, nothing was taken yet
        with self._lock:
            served, self._unread = list(self._recent)[len(self._recent) - self._unread :], 0
        together = _recognised(snapshot, [batch for batch in served if batch.seen is None])
        for batch in served:
            try:
                seen = batch.seen or together.get(id(batch)) or snapshot.recognise(batch.texts)
                seen = seen if batch.named is None else believed(seen, batch.named)
                monitor.count(seen)
            except Exception as raised:  # a text, the monitor: this batch is left out, the others are not
                error = raised
                continue
            kept = batch.logits if self._keep_logits and batch.logits is not None else [None] * len(batch.ids)
            self._unsaved += map(RequestRow, batch.ids, seen.posteriors, kept, seen.novel.tolist())
        self._unsaved = self._unsaved[-RECENT:]
        try:
            if self._unsaved:
                self._store.add_requests(self._unsaved)
                self._unsaved = []
        except ServiceError as raised:
            error = raised
        return error

    def forget(self, slot: int) -> None:
        """Forget how many requests the slots up to this one held: the router was told them."""
        with self._lock:
            for place in [place for place in self.held if place[0] < slot - 1]:  # what was on its way may yet come
                del self.held[place]


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
