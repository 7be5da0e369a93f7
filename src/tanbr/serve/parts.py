"""A request whose texts go to several models of a panel: parts that are answered apart, and one answer of them all."""

import threading
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tanbr.serve.jobs import Job
from tanbr.serve.lineup import Lineup
from tanbr.serve.records import Answered, Generated

Whole = TypeVar("Whole", Answered, Generated)


def placed(job: Job, lineup: Lineup) -> list[Job]:
    """Say which model answers a job; where its texts go to several, the parts to answer instead of it."""
    assignment = lineup.assignment
    if assignment is None:
        job.place = 0
        return [job]
    if job.seen is None:
        job.seen = assignment.recognise(job.texts)
    job.posteriors = assignment.posteriors(job.seen, job.named)
    places = assignment.places(job.seen, job.named)
    if (places == places[0]).all():
        job.place = int(places[0])
        return [job]
    return parted(job, places)


def parted(job: Job, places: NDArray[np.intp]) -> list[Job]:
    """Part a job by the models (n,) of its texts; it is resolved when all its parts are, and fails with the first."""
    rows = [np.flatnonzero(places == place).tolist() for place in np.unique(places)]
    parts = [_part(job, some, int(places[some[0]])) for some in rows]
    lock, missing = threading.Lock(), len(parts)

    def ended(future: "Future[Any]") -> None:
        nonlocal missing
        if not future.cancelled() and (error := future.exception()) is not None:
            job.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
            return
        with lock:
            missing -= 1
            last = missing == 0
        if last and not any(part.future.cancelled() for part in parts):
            job.resolve(_whole([part.future.result() for part in parts], rows))

    for part in parts:
        part.future.add_done_callback(ended)
    return parts


def _part(job: Job, rows: list[int], place: int) -> Job:
    on_token = job.on_token
    return Job(
        [job.texts[i] for i in rows],
        max_tokens=job.max_tokens,
        sampling=tuple(job.sampling[i] for i in rows) if job.sampling else (),
        stop=job.stop,
        on_token=None if on_token is None else lambda row, piece: on_token(rows[row], piece),
        columns={name: [values[i] for i in rows] for name, values in job.columns.items()},
        cut=tuple(job.cut[i] for i in rows) if job.cut else (),
        limits=tuple(job.limits[i] for i in rows) if job.limits else (),
        named=job.named,
        seen=None if job.seen is None else job.seen.rows(rows),
        posteriors=None if job.posteriors is None else job.posteriors[rows],
        place=place,
        whole=job,
    )


def _whole(parts: list[Whole], rows: list[list[int]]) -> Whole:
    """Put the answers of parts in the order of the texts."""
    order = np.argsort([row for some in rows for row in some])
    versions = [version for part, some in zip(parts, rows, strict=True) for version in _versions(part, len(some))]
    whole: dict[str, Any] = {}
    for field in fields(parts[0]):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            whole[field.name] = np.concatenate(values)[order]
        elif field.name == "cut":
            cut = [c for part, some in zip(values, rows, strict=True) for c in (part or [0] * len(some))]
            whole["cut"] = tuple(cut[i] for i in order) if any(cut) else ()
        elif isinstance(values[0], tuple) and field.name != "merge_versions":
            flat = [value for part in values for value in part]
            whole[field.name] = tuple(flat[i] for i in order)
    ordered = tuple(versions[i] for i in order)
    return replace(parts[0], **whole, merge_version=ordered[0], merge_versions=ordered)


def _versions(part: Answered | Generated, count: int) -> tuple[int, ...]:
    return part.merge_versions or (part.merge_version,) * count
