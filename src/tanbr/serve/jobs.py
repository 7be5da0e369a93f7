"""One request on its way through the queue: its parts, which models answer, the room for prompts, the replies."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from tanbr.errors import InputError
from tanbr.moe.text import UNSAID, Columns, TextEncoder, positions
from tanbr.monitor.recogniser import Recognition
from tanbr.serve import tracing
from tanbr.serve.config import ServeConfig
from tanbr.serve.decode import Row
from tanbr.serve.engine import Engine
from tanbr.serve.ids import RequestIds
from tanbr.serve.panel import Answers, Live, Outbox, Panel
from tanbr.serve.records import Answered, Generated, OnToken
from tanbr.serve.relay import Call, combined
from tanbr.serve.sampling import Sampling
from tanbr.types import FloatArray, Text

Reweigh: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]  # logits (n, columns), posteriors (n, V) → logits
ENDING = threading.Lock()  # several threads may answer one job, or fail it, at the same time


@dataclass(eq=False, slots=True)
class Job:
    """The texts of one request, what became of them so far, and who waits for it."""

    texts: Sequence[Text]
    max_tokens: int | None = None  # to write for each prompt; None: as many as there is room for
    on_token: OnToken | None = None
    sampling: tuple[Sampling | None, ...] = ()  # (n,) how the words of each answer are drawn; empty: greedily
    stop: tuple[str, ...] = ()  # strings before the first of which an answer ends
    named: FloatArray | None = None  # (V,) 1 for the tasks that its client has named, if it has
    future: "Future[Any]" = field(default_factory=Future)
    columns: Columns = field(default_factory=dict)
    cut: tuple[int, ...] = ()  # (n,) tokens left out of each text; empty if of none
    limits: tuple[int, ...] = ()  # (n,) tokens to write for each prompt
    seen: Recognition | None = None  # what its texts say about their tasks, where that was asked for
    posteriors: FloatArray | None = None  # (n, V) the same, weighed by the slot's mix and by what the client has named
    answers: dict[int, tuple[str, int, Any]] = field(default_factory=dict)  # text → request id, merge version, answer
    ended: bool = False  # whether its answer or error was given
    call: Call | None = None  # that an engine answers as it is
    span: tracing.Span | None = field(default_factory=tracing.current)  # of its request, if that is traced

    def take(self, rows: Sequence[int], ids: Sequence[str], version: int, answers: Any) -> None:
        """Take answers (n,): logits, what was written with its text, or an engine's; the client gets all at the end."""
        with ENDING:
            self.answers |= {row: (name, version, one) for row, name, one in zip(rows, ids, answers, strict=True)}
            if len(self.answers) < len(self.texts):
                return
        ids, versions, answers = zip(*(self.answers[row] for row in range(len(self.texts))), strict=True)
        several = versions if len(set(versions)) > 1 else ()
        read = tuple(map(len, self.columns.get("input_ids", ())))
        usage = {"prompt_tokens": sum(read)}
        answer: Answered | Generated | dict[str, Any]
        if isinstance(answers[0], dict):  # an engine's, to all texts that one model has
            answer = combined(list({id(one): one for one in answers if one}.values()))
            usage = answer.get("usage") or {}
        elif isinstance(answers[0], np.ndarray):
            answer = Answered(ids, np.asarray(answers), versions[0], self.cut, several, read)
        else:
            written, texts = zip(*answers, strict=True)
            tokens = tuple(len(one.tokens) for one in written)
            ends: tuple[Literal["stop", "length"], ...] = tuple("stop" if w.stopped else "length" for w in written)
            answer = Generated(ids, texts, read, tokens, ends, versions[0], self.cut, several)
            usage["completion_tokens"] = sum(tokens)
        if self.span is not None:
            tracing.counted(self.span, ids[0], usage)
        if self._may_end():
            self.future.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Tell the client why there is no answer, if it still waits."""
        if self._may_end():
            self.future.set_exception(error)

    def _may_end(self) -> bool:
        """Whether the caller is the first to end the job, and the client still waits."""
        with ENDING:
            first, self.ended = not self.ended, True
        return first and self.future.set_running_or_notify_cancel()


@dataclass(eq=False, slots=True)
class Part:
    """The texts of a job that one model answers: all of them, unless a panel divides them."""

    job: Job
    rows: Sequence[int]  # of the job's texts
    place: int = 0  # in the panel, of the model
    written: dict[int, Row] = field(default_factory=dict)  # prompt → what was written for it
    streamed: bool = False  # whether the client has seen a piece of an answer
    left: bool = False  # whether the model has no more to do for it
    began: float = 0.0  # when the model began with it

    @property
    def wanted(self) -> bool:
        """Whether the model has work to do for it, and somebody waits."""
        return not self.left and not self.job.future.done()

    def trace(self, live: Live) -> None:
        """Note in the request's span, if there is one, which model has answered."""
        job, took = self.job, time.perf_counter() - self.began
        if job.span is not None:
            known = None if job.posteriors is None else job.posteriors[self.rows[0]]
            tracing.answered(job.span, place=live.place, merge_version=live.version, seconds=took, posterior=known)

    def fail(self, error: BaseException) -> None:
        """Fail the whole job."""
        self.left = True
        self.job.fail(error)


def assigned(job: Job, rows: Sequence[int], panel: Panel) -> list[Part]:
    """Divide some texts of a job among the models that answer."""
    if panel.assignment is None:
        return [Part(job, rows)]
    if job.seen is None:
        job.seen = panel.assignment.recogniser.recognise(job.texts)
    job.posteriors = panel.assignment.posteriors(job.seen, job.named)
    places = panel.assignment.places(job.seen, job.named)
    return [
        Part(job, [row for row in rows if places[row] == place], int(place)) for place in np.unique(places[list(rows)])
    ]


def count(parts: Iterable[Part]) -> int:
    """Count the texts of parts."""
    return sum(len(part.rows) for part in parts)


def columns_of(parts: Sequence[Part]) -> Columns:
    """Collect the tokens of all texts of parts."""
    names = parts[0].job.columns
    return {name: [part.job.columns[name][row] for part in parts for row in part.rows] for name in names}


@dataclass(frozen=True)
class Room:
    """How many tokens a model that writes can read and write."""

    prompt: int  # most that a prompt may have
    answer: int  # most that are written for one
    both: int | None  # most of the two together: the positions of a causal model; None for an encoder-decoder
    too_long: Literal["refuse", "cut"]  # what becomes of a prompt that is longer

    @staticmethod
    def of(engine: Engine, config: ServeConfig) -> "Room":
        """Find a model's room; one that continues its prompt has positions for both together."""
        backend = engine.live.backend
        found = [limit for limit in (positions(engine.moe.path), backend.positions) if limit is not None]
        room = min(found, default=None)
        limits = [limit for limit in (config.max_tokens, room and room - 1) if limit is not None]
        both = room if backend.causal else None
        return Room(engine.encode.max_length, min(limits, default=UNSAID), both, config.too_long)

    def check(self, max_tokens: int | None) -> None:
        """Refuse to write more than can be written."""
        if max_tokens is not None and not 1 <= max_tokens <= self.answer:
            why = "the model, or [serve] max_tokens, allows no more"
            raise InputError(f"max_tokens must be 1..{self.answer} (got {max_tokens}); {why}")

    def fit(self, job: Job, encoder: TextEncoder) -> None:
        """Encode a job's prompts, and set what can be written for each; one that is too long is refused or cut."""
        longest = self.prompt if self.both is None else min(self.prompt, self.both - (job.max_tokens or 1))
        encoded = encoder.encode(job.texts, limit=longest, side="left")
        lengths = [len(row) for row in encoded.columns["input_ids"]]
        if any(encoded.cut) and self.too_long == "refuse":
            number = max(range(len(lengths)), key=encoded.cut.__getitem__)
            raise InputError(
                f"prompt {number + 1} of {len(lengths)} has {lengths[number] + encoded.cut[number]} tokens, and this "
                f"model reads at most {longest} if it is to write {job.max_tokens or 'any'}; shorten it, or "
                'let the server cut it ([serve] too_long = "cut")'
            )
        most = self.answer if job.max_tokens is None else job.max_tokens
        job.limits = tuple(most if self.both is None else min(most, self.both - length) for length in lengths)
        job.columns, job.cut = encoded.columns, encoded.cut if any(encoded.cut) else ()


@dataclass(frozen=True, eq=False)
class Replies:
    """Makes answers of logits and tokens. `Answers` is in the outbox before any client of it has its answer."""

    ids: RequestIds
    tokenizer: Any
    outbox: Outbox
    classes: int  # columns that are labels
    reweigh: Reweigh | None = None  # weighs labels by the text's task, where that is wanted

    def classified(self, parts: Sequence[Part], logits: FloatArray, live: Live) -> None:
        """Answer texts by their logits (n, columns)."""
        if self.reweigh is not None:
            logits = self._reweighed(parts, logits, self.reweigh)
        self._tell(parts, live, logits, logits=logits if self.classes else None)  # of vectors none has to be kept

    def written(self, part: Part, live: Live) -> None:
        """Answer prompts."""
        rows = [part.written[row] for row in part.rows]
        whole = self.tokenizer.batch_decode([row.tokens for row in rows], skip_special_tokens=True)
        texts = [text if row.text is None else row.text for text, row in zip(whole, rows, strict=True)]
        self._tell([part], live, list(zip(rows, texts, strict=True)))

    def _reweighed(self, parts: Sequence[Part], logits: FloatArray, reweigh: Reweigh) -> FloatArray:
        """Weigh the labels (n, columns) of texts whose tasks are known, or named, by these."""
        weighed, start = logits.copy(), 0
        for part in parts:
            job, rows = part.job, np.asarray(part.rows)
            if job.posteriors is not None and job.seen is not None:
                known = np.flatnonzero((~job.seen.novel[rows] & job.seen.informed) | (job.named is not None))
                weighed[start + known] = reweigh(logits[start + known], job.posteriors[rows[known]])
            start += len(rows)
        return weighed

    def _tell(self, parts: Sequence[Part], live: Live, answers: Any, **kept: Any) -> None:
        """Tell the learner, with what is to be `kept` of them, then give the jobs their answers (n,)."""
        raw = tuple(self.ids.issue(live.slot, len(answers), place=live.place))
        self.put(parts, live, raw, **kept)
        start = 0
        for part in parts:
            some = slice(start, start := start + len(part.rows))
            part.job.take(part.rows, [self.ids.show(value) for value in raw[some]], live.version, answers[some])

    def put(self, parts: Sequence[Part], live: Live, raw: tuple[bytes, ...], **kept: Any) -> None:
        """Tell the learner what was answered under these ids."""
        for part in parts:
            part.trace(live)
        seen = [part.job.seen.rows(part.rows) for part in parts if part.job.seen is not None]
        self.outbox(
            Answers(
                live.version,
                live.slot,
                raw,
                tuple(part.job.texts[row] for part in parts for row in part.rows),
                **kept,
                place=live.place,
                seen=Recognition.concatenate(seen) if len(seen) == len(parts) else None,
                named=_named_tasks(parts),
            )
        )


def _named_tasks(parts: Sequence[Part]) -> FloatArray | None:
    """Mark the tasks that clients have named (n, V), all tasks for a client that named none; None if nobody has."""
    named = [part.job.named for part in parts if part.job.named is not None]
    if not named:
        return None
    rows = [np.ones_like(named[0]) if part.job.named is None else part.job.named for part in parts]
    return np.repeat(rows, [len(part.rows) for part in parts], axis=0)
