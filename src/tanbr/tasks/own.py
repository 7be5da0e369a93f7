"""Labelled rows of your own: CSV, TSV, JSON lines or Parquet, one file a task or one with a column that names it.

Columns are text, text2 for pairs of texts, label, and task if a file has several; `tasks.toml` beside the files may
say more of a task (`TaskFile`), as docs/training.md shows. Without `NAME.dev.csv` a fifth of a task's rows, always the
same, is left out of training for requests and figures.
"""

import csv
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import Field

from tanbr.config import Section, read, read_toml
from tanbr.errors import DataError
from tanbr.tasks.metrics import METRICS
from tanbr.tasks.rows import WRITTEN, Row, Task
from tanbr.types import Text

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
LISTING = "tasks.toml"
DEV = ".dev"  # how the stem of a file ends that holds rows for figures alone
FEWEST_ROWS = 5  # rows of a task, so that each part has one
SHARE = 0.2  # of the rows that is left out


class TaskFile(Section):
    """One task of `tasks.toml`."""

    name: str = Field(min_length=1)
    file: str
    dev: str | None = None  # rows for requests and figures; a fifth of the others if not given
    text: str = "text"  # columns
    text2: str = "text2"
    label: str = "label"
    labels: tuple[str, ...] = ()  # all, in order; those that are found if not given
    scale: tuple[float, float] | None = None  # lowest and highest grade, of a task whose labels are grades
    metrics: tuple[str, ...] = ()  # accuracy, or the correlations of grades, if not given


class TaskFiles(Section):
    """`tasks.toml`."""

    tasks: tuple[TaskFile, ...] = Field(min_length=1)


_Entry: TypeAlias = tuple[str, Mapping[str, str]]  # where a row stands, and what it says by column
_Group: TypeAlias = tuple[TaskFile, list[_Entry], list[_Entry]]  # a task, its rows, its dev rows


@dataclass(frozen=True, eq=False)
class OwnRows:
    """Tasks, their rows, and rows that training leaves alone."""

    name: str
    tasks: tuple[Task, ...]
    rows: Mapping[str, Sequence[Row]]  # shuffled
    dev: Mapping[str, Sequence[Row]]


def is_own(place: str | Path) -> bool:
    """Whether a place names rows of this kind: a file of theirs, or a folder that holds some."""
    path = Path(place)
    if path.is_dir():
        return (path / LISTING).is_file() or any(file.suffix in ENDINGS for file in path.iterdir())
    return path.suffix in ENDINGS or path.name.endswith(".toml")


def read_own(place: str | Path) -> OwnRows:
    """Read a folder, a `tasks.toml`, or one file with a column `task`; a bad row is refused by file and line."""
    path = Path(place)
    listing = path / LISTING if path.is_dir() else path
    if listing.name.endswith(".toml") and listing.is_file():
        groups = _listed(listing)
    else:
        files = [path] if not path.is_dir() else sorted(file for file in path.iterdir() if file.suffix in ENDINGS)
        groups = _found(files)
    tasks, rows, dev = [], {}, {}
    for about, entries, kept in groups:
        task = _task(about, [*entries, *kept])
        own = [_row(entry, about, task) for entry in entries]
        random.Random(0).shuffle(own)  # noqa: S311  a shuffle, not a secret
        cut = len(own) if kept else len(own) - round(SHARE * len(own))
        tasks.append(task)
        rows[task.name] = own[:cut]
        dev[task.name] = [_row(entry, about, task) for entry in kept] or own[cut:]
    return OwnRows(path.stem, tuple(tasks), rows, dev)


def _listed(listing: Path) -> list[_Group]:
    values = read_toml(listing, what="the list of tasks")
    groups: dict[str, _Group] = {}
    for about in read(TaskFiles, values, source=str(listing)).tasks:
        if about.name in groups:
            raise DataError(f"{listing} names the task {about.name} twice; give every task its own name")
        for odd in set(about.metrics) - METRICS.keys() - WRITTEN.keys():
            known = ", ".join(METRICS | WRITTEN)
            raise DataError(f"{listing}: {about.name} has the metric {odd!r}; known: {known}")
        if {name in WRITTEN for name in about.metrics} == {True, False}:
            raise DataError(f"{listing}: {about.name} has metrics of labels and of whole texts; choose one kind")
        dev = [] if about.dev is None else _entries(listing.parent / about.dev)
        groups[about.name] = about, _entries(listing.parent / about.file), dev
    return list(groups.values())


def _found(files: Sequence[Path]) -> list[_Group]:
    """Group the rows of files by task: the file's own name, or what its column `task` says."""
    groups: dict[str, _Group] = {}
    for file in files:
        dev = file.stem.endswith(DEV)
        for entry in _entries(file):
            name = entry[1].get("task") or file.stem.removesuffix(DEV)
            group = groups.setdefault(name, (TaskFile(name=name, file=str(file)), [], []))
            (group[2] if dev else group[1]).append(entry)
    if not groups:
        raise DataError(f"no rows found; a task is a file of {', '.join(ENDINGS)} with columns text and label")
    return list(groups.values())


def _entries(path: Path) -> list[_Entry]:
    reader = {".csv": _csv, ".tsv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}.get(path.suffix)
    if reader is None:
        raise DataError(f"{path} must be a file of {', '.join(ENDINGS)}")
    try:
        found = list(reader(path))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except csv.Error as error:
        raise DataError(f"{path} is no CSV file: {error}") from None
    if not found:
        raise DataError(f"{path} holds no rows")
    return found


def _csv(path: Path) -> Iterator[_Entry]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
        header = [name.strip() for name in next(lines, [])]
        for fields in filter(None, lines):  # a blank line is no row
            where = f"{path}, line {lines.line_num}"
            if len(fields) != len(header):
                raise DataError(f"{where}: expected {len(header)} columns (got {len(fields)}); quote commas in texts")
            yield where, dict(zip(header, fields, strict=True))


def _jsonl(path: Path) -> Iterator[_Entry]:
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = None
            if not isinstance(values, dict):
                raise DataError(f'{where} must be a JSON object like {{"text": …, "label": …}}')
            yield where, _strings(values)


def _parquet(path: Path) -> Iterator[_Entry]:
    try:
        from pyarrow import ArrowInvalid, parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise DataError(f"{path}: Parquet files need pyarrow: pip install pyarrow, or save the rows as CSV") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except ArrowInvalid as error:
        raise DataError(f"{path} is no Parquet file: {str(error).splitlines()[0]}") from None
    for number, values in enumerate(rows, start=1):
        yield f"{path}, row {number}", _strings(values)


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    """Write values as CSV would hold them: a label 1.0 of a table is the label 1."""
    return {
        str(key): f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
        for key, value in values.items()
        if value is not None
    }


def _task(about: TaskFile, entries: Sequence[_Entry]) -> Task:
    """Find out what a task is from what its rows say."""
    for where, values in entries:
        for column in (about.text, about.label):
            if column not in values:
                found = ", ".join(values) or "nothing"
                raise DataError(f"{where}: there is no {column!r} (found: {found}); say in {LISTING} what it is called")
    if len(entries) < FEWEST_ROWS:
        raise DataError(f"task {about.name} has {len(entries)} rows; give it {FEWEST_ROWS} or more")
    pair = about.text2 in entries[0][1]
    if about.scale is not None:
        low, high = about.scale
        if not low < high or about.labels:
            raise DataError(f"task {about.name}: a scale goes from low to high and has no labels (got {low}, {high})")
        return Task(about.name, about.metrics or ("pearson", "spearman"), scale=(low, high), pair=pair)
    counts = Counter(values[about.label].strip() for _, values in entries)
    labels = about.labels or tuple(sorted(label for label in counts if label))
    if set(about.metrics) & set(WRITTEN):  # every answer may be a text of its own
        return Task(about.name, about.metrics, labels, pair=pair)
    rare = next((label for label in labels if counts[label] < 2), None)
    if rare is not None:
        raise DataError(f"task {about.name}: the label {rare!r} appears {counts[rare]} times; give two rows or more")
    if len(labels) < 2:
        raise DataError(f"task {about.name} has one label only ({', '.join(labels)}); there is nothing to choose")
    return Task(about.name, about.metrics or ("accuracy",), labels, pair=pair)


def _row(entry: _Entry, about: TaskFile, task: Task) -> Row:
    where, values = entry
    parts = [values.get(column, "").strip() for column in (about.text, about.text2)[: 1 + task.pair]]
    if not all(parts):
        raise DataError(f"{where}: the text is empty" + (" or not a pair" if task.pair else ""))
    text: Text = (parts[0], parts[1]) if task.pair else parts[0]
    return Row(task.name, text, task.target(values[about.label].strip(), where=where))
