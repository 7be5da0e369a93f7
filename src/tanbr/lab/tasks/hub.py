"""GLUE from the hub, through the `datasets` library (an extra: `pip install 'tanbr[hub]'`)."""

from typing import Any, Literal

from tanbr.errors import DataError
from tanbr.tasks.rows import Row
from tanbr.types import Text

REPOSITORY = "nyu-mll/glue"
_NAMES = {  # task → the hub's name for it, and for its texts
    "CoLA": ("cola", "sentence"),
    "SST-2": ("sst2", "sentence"),
    "MRPC": ("mrpc", "sentence1", "sentence2"),
    "STS-B": ("stsb", "sentence1", "sentence2"),
    "QQP": ("qqp", "question1", "question2"),
    "MNLI": ("mnli", "premise", "hypothesis"),
    "QNLI": ("qnli", "question", "sentence"),
    "RTE": ("rte", "sentence1", "sentence2"),
}


def read(task: str, split: Literal["train", "dev"]) -> list[Row]:
    """Read a split of a GLUE task; the hub numbers labels in the order in which `glue.TASKS` lists them."""
    try:
        from datasets import load_dataset  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise DataError("GLUE from the hub needs the datasets library: pip install 'tanbr[hub]'") from None
    name, *fields = _NAMES[task]
    part = "train" if split == "train" else "validation_matched" if task == "MNLI" else "validation"
    try:
        data: Any = load_dataset(REPOSITORY, name, split=part)
    except (OSError, ValueError) as error:
        raise DataError(f"the hub does not give {REPOSITORY}, {name}: {str(error).splitlines()[0]}") from None
    return [Row(task=task, text=_text(row, fields), target=float(row["label"])) for row in data]


def _text(row: Any, fields: list[str]) -> Text:
    parts = [str(row[field]).strip() for field in fields]
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])
