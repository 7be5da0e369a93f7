"""Resumable jobs: each result is a JSON file of its own, with what it depends on; one of other settings is refused."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

import tanbr
from tanbr.errors import StateError, TanbrError
from tanbr.files import check_writable, write_atomically
from tanbr.types import to_jsonable

Tick: TypeAlias = Callable[[int, int, str], None]  # done, total, note
Moved: TypeAlias = Callable[[str, int, int, str], None]  # job, done, total, note


@dataclass(frozen=True)
class Job:
    """One piece of work whose result is kept."""

    name: str  # of its file
    run: Callable[[Tick], Any]  # gives what JSON can hold, once arrays are lists
    facts: Mapping[str, Any]  # what the result depends on


@dataclass(frozen=True)
class Kept:
    """A job's result."""

    result: Any
    seconds: float
    commit: str


def place(folder: Path, job: Job) -> Path:
    """Name the file of a job's result."""
    return folder / f"{job.name}.json"


def load(folder: Path, job: Job) -> Kept | None:
    """Read a job's result; None if there is none, refused if it is of other settings."""
    path = place(folder, job)
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        facts, kept = values["facts"], Kept(values["result"], values["seconds"], values["commit"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"{path} holds no result ({error}); delete it to run it again") from None
    if facts != json.loads(json.dumps(to_jsonable(dict(job.facts)))):
        raise StateError(f"{path} belongs to a run with other settings; choose another --out or delete it")
    return kept


def do(folder: Path, job: Job, tick: Tick = lambda *_: None) -> Kept:
    """Run a job and keep its result."""
    begun = time.perf_counter()
    result = job.run(tick)
    kept = Kept(to_jsonable(result), round(time.perf_counter() - begun, 2), commit())
    values = {"job": job.name, "facts": to_jsonable(dict(job.facts)), **vars(kept)}
    write_atomically(place(folder, job), json.dumps(values, separators=(",", ":")) + "\n")
    return kept


def run(
    folder: Path,
    jobs: Iterable[Job],
    *,
    moved: Moved = lambda *_: None,
    finished: Callable[[str, Kept, bool], None] = lambda *_: None,
) -> dict[str, Kept]:
    """Run jobs whose results are not in the folder; `moved` hears how far one is, `finished` whether it was there.

    A job that fails stops no other; the first error is raised when all that can be done is done.
    """
    once = {job.name: job for job in jobs}
    kept = {name: found for name, job in once.items() if (found := load(folder, job)) is not None}
    for name, found in kept.items():
        finished(name, found, True)
    check_writable(folder)
    torch.set_num_threads(1)  # sums are the same on every machine, and a neighbour's load matters less
    errors = []
    for name, job in once.items():
        if name not in kept:
            moved(name, 0, 1, "")
            try:
                kept[name] = do(folder, job, partial(moved, name))
            except TanbrError as error:
                errors.append(error)
            else:
                finished(name, kept[name], False)
    if errors:
        raise errors[0]
    return {name: kept[name] for name in once}


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
