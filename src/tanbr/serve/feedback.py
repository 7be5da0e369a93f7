"""Feedback that clients give: checked, scored, and on disk when they hear that it was taken."""

from collections.abc import Sequence

from tanbr.errors import InputError
from tanbr.serve.answer_log import AnswerLog
from tanbr.serve.ids import RequestIds, slot_of
from tanbr.serve.labels import HeadLabels
from tanbr.serve.records import Feedback, Outcome, Receipt
from tanbr.serve.rows import FeedbackRow
from tanbr.serve.store import Store
from tanbr.types import FloatArray


class FeedbackReader:
    """Takes in rewards, and labels that it scores by what was answered; thread-safe."""

    def __init__(
        self, store: Store, answers: AnswerLog, ids: RequestIds, *, tasks: Sequence[str], space: HeadLabels | None
    ) -> None:
        """Take feedback on the tasks named; without a `space` no labels, only rewards."""
        self._store, self._answers, self._ids, self._space = store, answers, ids, space
        self._tasks = {name: number for number, name in enumerate(tasks)}

    def take(self, items: Sequence[Feedback], *, client: str) -> Receipt:
        """Take all in; InputError, with nothing taken in, if one of them makes no sense."""
        for item in items:
            self._check(item)
        raw = [self._known(item.request_id) for item in items]
        labelled = [key for key, item in zip(raw, items, strict=True) if key is not None and item.label is not None]
        logits = self._answers.logits_of(labelled)
        outcomes: list[Outcome] = ["unknown"] * len(items)
        rows = {
            place: self._row(key, item, logits, client)
            for place, (key, item) in enumerate(zip(raw, items, strict=True))
            if key is not None and (item.label is None or key in logits)
        }
        for place, outcome in zip(rows, self._store.add_feedback(list(rows.values())) if rows else [], strict=True):
            outcomes[place] = outcome
        return Receipt(tuple(outcomes))

    def awaits_answers(self, items: Sequence[Feedback]) -> bool:
        """Whether labels came for requests of ours whose answers are not known here, or not yet."""
        raw = {self._known(item.request_id) for item in items if item.label is not None} - {None}
        return len(raw) > len(self._answers.logits_of([key for key in raw if key is not None]))

    def _row(self, key: bytes, item: Feedback, logits: dict[bytes, FloatArray], client: str) -> FeedbackRow:
        task = None if item.task is None else self._tasks[item.task]
        if item.label is None or item.task is None or self._space is None:
            return FeedbackRow(key, "feedback", task, float(item.reward or 0.0), client)
        return FeedbackRow(key, "labels", task, self._space.score(item.task, item.label, logits[key]), client)

    def _check(self, item: Feedback) -> None:
        if item.task is not None and item.task not in self._tasks:
            raise InputError(f"unknown task {item.task!r}; this server knows {', '.join(self._tasks)}")
        if (item.reward is None) == (item.label is None):
            raise InputError("feedback needs either a reward or a label")
        if item.label is None:
            if item.reward is None or not 0.0 <= item.reward <= 1.0:
                raise InputError(f"a reward must lie in [0, 1] (got {item.reward})")
            return
        if self._space is None:
            raise InputError("this server scores no labels; send a reward instead")
        if item.task is None:
            raise InputError("a label needs its task: labels of several tasks may have one name")
        self._space.number_of(item.task, item.label)

    def _known(self, request_id: str) -> bytes | None:
        raw = self._ids.read(request_id)
        return raw if raw is not None and slot_of(raw) >= self._store.oldest else None
