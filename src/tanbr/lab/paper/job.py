"""Resumable jobs: each result is a JSON file of its own, written whole or not at all, with what it depends on.

A run that was stopped goes on with the jobs that are missing. A result of other settings is refused; a result of
another commit is kept and said to be so.
"""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import tanbr
from tanbr.errors import StateError
from tanbr.files import check_writable, write_atomically
from tanbr.lab.paper.cost import Cost
from tanbr.types import to_jsonable

Tick: TypeAlias = Callable[[int, int, str], None]  # done, total, note


@dataclass(frozen=True)
class Job:
    """One piece of work whose result is kept."""

    name: str  # of its file
    run: Callable[[Tick], Any]  # gives what JSON can hold
    facts: Mapping[str, Any]  # what the result depends on, seeds included
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Kept:
    """A job's result."""

    result: Any
    seconds: float
    commit: str


class Watch(Protocol):
    """Who hears how far jobs are."""

    def started(self, job: Job) -> None:
        """Hear that a job runs."""

    def moved(self, job: Job, done: int, total: int, note: str) -> None:
        """Hear how far it is."""

    def finished(self, job: Job, kept: Kept, *, was_there: bool) -> None:
        """Hear that it is done, or was done before."""


class Unwatched:
    """Nobody."""

    def started(self, job: Job) -> None:
        """Ignore it."""

    def moved(self, job: Job, done: int, total: int, note: str) -> None:
        """Ignore it."""

    def finished(self, job: Job, kept: Kept, *, was_there: bool) -> None:
        """Ignore it."""


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


def run(jobs: Sequence[Job], *, out: Path, watch: Watch | None = None) -> dict[str, Kept]:
    """Do the jobs that are missing, each once, and give all results by name."""
    watch = watch or Unwatched()
    once = list({job.name: job for job in jobs}.values())
    found = {job.name: load(out, job) for job in once}  # what does not fit is refused before anything runs
    check_writable(out / "jobs")
    results: dict[str, Kept] = {}
    for job in once:
        kept = found[job.name]
        if kept is not None:
            results[job.name] = kept
            watch.finished(job, kept, was_there=True)
    for job in once:
        if job.name in results:
            continue
        watch.started(job)
        begun = time.perf_counter()

        def tick(done: int, total: int, note: str, job: Job = job) -> None:
            watch.moved(job, done, total, note)

        result = to_jsonable(job.run(tick))
        values = {
            "job": job.name,
            "facts": to_jsonable(dict(job.facts)),
            "commit": commit(),
            "seconds": round(time.perf_counter() - begun, 2),
            "result": result,
        }
        write_atomically(place(out, job), json.dumps(values, separators=(",", ":")) + "\n")
        kept = load(out, job)
        assert kept is not None  # noqa: S101 - it was written above
        results[job.name] = kept
        watch.finished(job, kept, was_there=False)
    return results


@cache
def commit() -> str:
    """Name the code that runs: the commit of its checkout, with a + if it was changed since; its version elsewhere."""
    package = Path(tanbr.__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *words],  # noqa: S607
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "tanbr" != package.resolve():
            return f"version {tanbr.__version__}"
        changed = "+" if git("status", "--porcelain", "--", str(package)) else ""
        return git("rev-parse", "--short=10", "HEAD") + changed
    except (OSError, subprocess.SubprocessError):
        return f"version {tanbr.__version__}"
