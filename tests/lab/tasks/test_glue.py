"""GLUE's folders are read as they are, and what is wrong with them is said."""

from pathlib import Path

import pytest

from tanbr.errors import DataError
from tanbr.lab.tasks import glue

FILES = {
    "CoLA": ["s1\t1\t\tThe cat sat.", 's2\t0\t*\tCat the "sat.'],
    "SST-2": ["sentence\tlabel", "a fine film \t1", "a dull film \t0"],
    "MRPC": ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\tHe left .\tHe went ."],
    "STS-B": ["index\tgenre\tsentence1\tsentence2\tscore", "0\tnews\tA man runs.\tA man is running.\t4.750"],
    "QQP": ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWhy?\tHow?\t0"],
    "MNLI": ["index\tgenre\tsentence1\tsentence2\tgold_label", "0\tx\tIt rains.\tIt is dry.\tcontradiction"],
    "QNLI": ["index\tquestion\tsentence\tlabel", "0\tWhen?\tIn May.\tentailment"],
    "RTE": ["index\tsentence1\tsentence2\tlabel", "0\tIt rains.\tIt is wet.\tnot_entailment"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for task, lines in FILES.items():
        (tmp_path / task).mkdir()
        for split in ("train", "dev"):
            (tmp_path / task / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def rewrite(folder: Path, task: str, lines: list[str]) -> None:
    (folder / task / "train.tsv").write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("split", ["train", "dev"])
def test_every_task_is_read(folder: Path, split: str) -> None:
    rows = glue.load(folder, split=split)
    assert list(rows) == [task.name for task in glue.TASKS]
    for task in glue.TASKS:
        assert all(row.task == task.name and isinstance(row.text, tuple) == task.pair for row in rows[task.name])
    assert rows["STS-B"][0].target == 4.75
    assert rows["MNLI"][0].target == 2.0  # contradiction
    assert rows["RTE"][0].text == ("It rains.", "It is wet.")


def test_a_handful_of_broken_lines_is_skipped(folder: Path) -> None:
    good = [f"{number}\t1\t2\tWhy {number}?\tHow?\t0" for number in range(2000)]
    rewrite(folder, "QQP", [FILES["QQP"][0], *good, "0\t1\tbroken"])
    assert len(glue.load(folder, tasks=["QQP"])["QQP"]) == 2000


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        ("SST-2", ["text\tlabel", "a film\t1"], r"no column 'sentence' \(found: text, label\)"),
        ("SST-2", ["sentence\tlabel", "a film\t2"], r"line 2: label must be one of 0, 1 \(got '2'\)"),
        ("SST-2", ["sentence\tlabel", "a film"], r"line 2: expected 2 columns \(got 1\)"),
        ("SST-2", ["sentence\tlabel"], "holds no rows"),
        ("STS-B", ["sentence1\tsentence2\tscore", "a\tb\t5.5"], r"score must lie in \[0, 5\] \(got 5.5\)"),
        ("RTE", ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tneutral"], "label must be one of entailment"),
    ],
)
def test_what_a_file_must_not_hold(folder: Path, task: str, lines: list[str], message: str) -> None:
    rewrite(folder, task, lines)
    with pytest.raises(DataError, match=message):
        glue.load(folder, tasks=[task])


def test_what_is_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no GLUE folder"):
        glue.load(tmp_path / "nowhere")
    (folder / "RTE" / "dev.tsv").unlink()
    with pytest.raises(DataError, match="cannot read RTE"):
        glue.load(folder, split="dev")
    (folder / "RTE" / "train.tsv").write_bytes(b"index\tsentence1\tsentence2\tlabel\n0\t\xff\tb\tentailment\n")
    with pytest.raises(DataError, match="not UTF-8"):
        glue.load(folder, tasks=["RTE"])
