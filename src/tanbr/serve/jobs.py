"""One request on its way through the queue. Where its texts go to several models, it is divided into parts."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import InputError
from tanbr.moe.text import Columns, TextEncoder, positions
from tanbr.monitor.recogniser import Recognition
from tanbr.serve.config import ServeConfig
from tanbr.serve.decode import Written
from tanbr.serve.engine import Engine
from tanbr.serve.panel import Lineup
from tanbr.serve.records import Answered, Generated, OnToken
from tanbr.serve.sampling import Sampling
from tanbr.types import FloatArray, Text

Answer = TypeVar("Answer", Answered, Generated)


@dataclass(eq=False)
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
    written: dict[int, Written] = field(default_factory=dict)  # prompt → what was written for it
    streamed: bool = False  # whether its client has seen a part of an answer
    left: bool = False  # whether the model has no more to do for it
    seen: Recognition | None = None  # what its texts say about their tasks, where that was asked for
    posteriors: FloatArray | None = None  # (n, V) the same, weighed by the slot's mix and by what the client has named
    place: int = 0  # in the lineup, of the model that answers it
    whole: "Job | None" = None  # the job that this is a part of

    @property
    def wanted(self) -> bool:
        """Whether the model has work to do for it, and somebody waits."""
        return not self.left and not self.future.cancelled() and (self.whole is None or self.whole.wanted)

    def resolve(self, answer: Answered | Generated) -> None:
        """Give the client its answer, if it still waits."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Tell the client why there is no answer, if it still waits."""
        self.left = True
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def count(jobs: Sequence[Job]) -> int:
    """Count the texts of jobs."""
    return sum(len(job.texts) for job in jobs)


# --- prompts ----------------------------------------------------------------------------------------------------------


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
        answer = min([config.max_tokens, *(limit - 1 for limit in found)])
        return Room(engine.encode.max_length, answer, min(found) if found and backend.causal else None, config.too_long)

    def check(self, max_tokens: int | None) -> None:
        """Refuse to write more than can be written."""
        if max_tokens is not None and not 1 <= max_tokens <= self.answer:
            raise InputError(f"max_tokens must be 1..{self.answer} (got {max_tokens})")

    def fit(self, job: Job, encoder: TextEncoder) -> None:
        """Encode a job's prompts and set what can be written for each: max_tokens, or if None as much as fits.

        A prompt that leaves no room is refused (InputError), or cut on the left: its end is nearest to the answer.
        """
        longest = self.prompt if self.both is None else min(self.prompt, self.both - (job.max_tokens or 1))
        encoded = encoder.encode(job.texts, limit=longest, side="left")
        lengths = [len(row) for row in encoded.columns["input_ids"]]
        if any(encoded.cut) and self.too_long == "refuse":
            number = max(range(len(lengths)), key=encoded.cut.__getitem__)
            raise InputError(
                f"prompt {number + 1} of {len(lengths)} has {lengths[number] + encoded.cut[number]} tokens, and this "
                f"model reads at most {longest} if it is to write {job.max_tokens or 'any'}; shorten the prompt"
            )
        most = self.answer if job.max_tokens is None else job.max_tokens
        job.limits = tuple(most if self.both is None else min(most, self.both - length) for length in lengths)
        job.columns, job.cut = encoded.columns, encoded.cut if any(encoded.cut) else ()


# --- parts ------------------------------------------------------------------------------------------------------------


def assigned(job: Job, lineup: Lineup) -> list[Job]:
    """Choose the model that answers a job; where its texts go to several, give the parts to answer instead of it."""
    if lineup.assignment is None:
        job.place = 0
        return [job]
    if job.seen is None:
        job.seen = lineup.assignment.recognise(job.texts)
    job.posteriors = lineup.assignment.posteriors(job.seen, job.named)
    places = lineup.assignment.places(job.seen, job.named)
    job.place = int(places[0])
    return [job] if (places == places[0]).all() else divided(job, places)


def divided(job: Job, places: NDArray[np.intp]) -> list[Job]:
    """Divide a job by the models (n,) of its texts; it is resolved when all its parts are, and fails with the first."""
    rows = [np.flatnonzero(places == place).tolist() for place in np.unique(places)]
    parts = [_part(job, some, int(places[some[0]])) for some in rows]

    def ended(future: "Future[Any]") -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            job.fail(error)
        elif all(one.future.done() and not one.future.cancelled() and not one.future.exception() for one in parts):
            job.resolve(_joined([one.future.result() for one in parts], rows))  # one thread resolves all parts

    for part in parts:
        part.future.add_done_callback(ended)
    return parts


def _part(job: Job, rows: list[int], place: int) -> Job:
    on_token = job.on_token
    return Job(
        [job.texts[i] for i in rows],
        max_tokens=job.max_tokens,
        on_token=None if on_token is None else lambda row, piece: on_token(rows[row], piece),
        sampling=tuple(job.sampling[i] for i in rows) if job.sampling else (),
        stop=job.stop,
        named=job.named,
        columns={name: [values[i] for i in rows] for name, values in job.columns.items()},
        cut=tuple(job.cut[i] for i in rows) if job.cut else (),
        limits=tuple(job.limits[i] for i in rows) if job.limits else (),
        seen=None if job.seen is None else job.seen.rows(rows),
        posteriors=None if job.posteriors is None else job.posteriors[rows],
        place=place,
        whole=job,
    )


def _joined(parts: list[Answer], rows: list[list[int]]) -> Answer:
    """Put the answers of parts in the order of the texts."""
    order = np.argsort(np.concatenate(rows))
    whole: dict[str, Any] = {}
    for part in fields(parts[0]):
        values = [getattr(one, part.name) for one in parts]
        if part.name == "merge_versions":
            values = [
                one.merge_versions or (one.merge_version,) * len(some) for one, some in zip(parts, rows, strict=True)
            ]
        elif part.name == "cut":
            values = [cut or (0,) * len(some) for cut, some in zip(values, rows, strict=True)]
        if isinstance(values[0], np.ndarray):
            whole[part.name] = np.concatenate(values)[order]
        elif isinstance(values[0], tuple):
            flat = [value for one in values for value in one]
            whole[part.name] = tuple(flat[i] for i in order)
    whole["cut"] = whole["cut"] if any(whole["cut"]) else ()
    return replace(parts[0], **whole | {"merge_version": whole["merge_versions"][0]})
