"""GLUE's eight tasks, read from its own TSV folders (`CoLA/train.tsv`, …), which quote nothing."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tanbr.errors import DataError
from tanbr.tasks.rows import Row, Task
from tanbr.types import Text

BROKEN_LINES = 0.001  # share of lines with too few or too many columns to skip: GLUE's own QQP file holds a handful
YES_NO = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

TASKS = (
    Task("CoLA", metrics=("matthews",), labels=YES_NO),
    Task("SST-2", metrics=("accuracy",), labels=YES_NO),
    Task("MRPC", metrics=("accuracy", "f1"), labels=YES_NO, pair=True),
    Task("STS-B", metrics=("pearson", "spearman"), scale=(0.0, 5.0), pair=True),
    Task("QQP", metrics=("accuracy", "f1"), labels=YES_NO, pair=True),
    Task("MNLI", metrics=("accuracy",), labels=("entailment", "neutral", "contradiction"), pair=True),
    Task("QNLI", metrics=("accuracy",), labels=ENTAILMENT, pair=True),
    Task("RTE", metrics=("accuracy",), labels=ENTAILMENT, pair=True),
)
_BY_NAME = {task.name: task for task in TASKS}


@dataclass(frozen=True)
class _Source:
    """Where a task's texts and targets are in its file."""

    columns: tuple[str, ...]  # of texts
    target: str
    header: tuple[str, ...] = ()  # of a file without a header line


_SENTENCES = ("sentence1", "sentence2")
_SOURCES = {
    "CoLA": _Source(("sentence",), "label", header=("source", "label", "star", "sentence")),
    "SST-2": _Source(("sentence",), "label"),
    "MRPC": _Source(("#1 String", "#2 String"), "Quality"),
    "STS-B": _Source(_SENTENCES, "score"),
    "QQP": _Source(("question1", "question2"), "is_duplicate"),
    "MNLI": _Source(_SENTENCES, "gold_label"),
    "QNLI": _Source(("question", "sentence"), "label"),
    "RTE": _Source(_SENTENCES, "label"),
}


def load(
    folder: str | Path,
    *,
    tasks: Iterable[str] = tuple(_BY_NAME),
    split: Literal["train", "dev"] = "train",
    limit: int | None = None,
    seed: int = 0,
) -> dict[str, list[Row]]:
    """Read a split of each task, shuffled, at most `limit` rows per task."""
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"no GLUE folder at {root}; expected one with {', '.join(_BY_NAME)} in it")
    rows = {}
    for name in tasks:
        read = _read(root / name / f"{split}.tsv", _BY_NAME[name])
        random.Random(seed).shuffle(read)  # noqa: S311  a shuffle, not a secret
        rows[name] = read[:limit]
    return rows


def _read(path: Path, task: Task) -> list[Row]:
    source = _SOURCES[task.name]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {task.name} at {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    lines = [(n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    header = list(source.header) or (lines.pop(0)[1] if lines else [])
    missing = [name for name in (*source.columns, source.target) if name not in header]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r} (found: {', '.join(header) or 'nothing'})")
    if not lines:
        raise DataError(f"{path} holds no rows")
    places = [header.index(name) for name in (*source.columns, source.target)]
    rows, broken = [], 0
    for number, fields in lines:
        if len(fields) != len(header):
            broken += 1
            if broken > BROKEN_LINES * len(lines):
                raise DataError(f"{path}, line {number}: expected {len(header)} columns (got {len(fields)})")
            continue
        *texts, target = (fields[place] for place in places)
        rows.append(Row(task.name, _text(texts), task.target(target, where=f"{path}, line {number}")))
    return rows


def _text(parts: list[str]) -> Text:
    first, *second = (part.strip() for part in parts)
    return (first, second[0]) if second else first
