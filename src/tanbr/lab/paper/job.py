"""Resumable jobs: each result is a JSON file of its own, written whole or not at all, with what it depends on.

A run that was stopped goes on with the jobs that are missing. A result of other settings is refused; a result of
another commit is kept and said to be so.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tanbr.errors import StateError
from tanbr.files import check_writable, write_atomically
from tanbr.lab import report
from tanbr.types import to_jsonable

Tick: TypeAlias = Callable[[int, int, str], None]  # done, total, note
Moved: TypeAlias = Callable[[str, int, int, str], None]  # the same, after the job's name


@dataclass(frozen=True)
class Job:
    """One piece of work whose result is kept."""

    name: str  # of its file
    run: Callable[[Tick], Any]  # gives what JSON can hold
    facts: Mapping[str, Any]  # what the result depends on, seeds included


@dataclass(frozen=True)
class Kept:
    """A job's result."""

    result: Any
    seconds: float
    commit: str


def place(out: Path, job: Job) -> Path:
    """Name the file of a job's result."""
    return out / "jobs" / f"{job.name}.json"


def load(out: Path, job: Job) -> Kept | None:
    """Read a job's result; None if there is none, refused if it is of other settings."""
    path = place(out, job)
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        facts, kept = values["facts"], Kept(values["result"], values["seconds"], values["commit"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"{path} is no result of reproduce ({error}); delete it to run that part again") from None
    if facts != json.loads(json.dumps(to_jsonable(dict(job.facts)))):
        raise StateError(f"{path} belongs to a run with other settings; choose another --out or delete it")
    return kept


def run(
    jobs: Sequence[Job],
    *,
    out: Path,
    moved: Moved = lambda *_: None,
    finished: Callable[[str, Kept], None] = lambda *_: None,
) -> dict[str, Kept]:
    """Do the jobs that are missing, each once, and give all results by name.

    `moved` hears how far a job is, `finished` its result, unless that was there before.
    """
    once = {job.name: job for job in jobs}
    found = {name: load(out, job) for name, job in once.items()}  # what does not fit is refused before anything runs
    check_writable(out / "jobs")
    results = {name: kept for name, kept in found.items() if kept is not None}
    for job in once.values():
        if job.name in results:
            continue
        moved(job.name, 0, 1, "")
        begun = time.perf_counter()
        result = to_jsonable(job.run(partial(moved, job.name)))
        values = {
            "job": job.name,
            "facts": to_jsonable(dict(job.facts)),
            "commit": report.commit(),
            "seconds": round(time.perf_counter() - begun, 2),
            "result": result,
        }
        write_atomically(place(out, job), json.dumps(values, separators=(",", ":")) + "\n")
        kept = load(out, job)
        assert kept is not None  # noqa: S101 - it was written above
        results[job.name] = kept
        finished(job.name, kept)
    return results
