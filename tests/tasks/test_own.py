"""Labelled rows of one's own: every kind of file, and one sentence with file and line for what is wrong in it."""

import json

import pytest

from tanbr.errors import ConfigError, DataError
from tanbr.tasks.own import read_own
from tanbr.tasks.rows import Task

ROWS = [(f"text {number}", ("no", "yes")[number % 2]) for number in range(20)]


def csv_file(path, rows=ROWS, header="text,label"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return path


def test_a_folder_of_files_is_one_task_each(tmp_path) -> None:
    csv_file(tmp_path / "mood.csv")
    lines = [{"text": f"t{n}", "text2": "other, with a comma", "label": n % 3} for n in range(30)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "tabs.tsv").write_text("label\ttext\n" + "".join(f'{n % 2}\ta "bare" {n}\n' for n in range(10)))
    (tmp_path / "README.md").write_text("no rows")
    found = read_own(tmp_path)
    assert found.tasks == (
        Task("mood", ("accuracy",), ("no", "yes")),
        Task("pairs", ("accuracy",), ("0", "1", "2"), pair=True),
        Task("tabs", ("accuracy",), ("0", "1")),
    )
    counts = {name: (len(found.rows[name]), len(found.dev[name])) for name in found.rows}
    assert counts == {"mood": (16, 4), "pairs": (24, 6), "tabs": (8, 2)}
    every = {(row.text, row.target) for row in (*found.rows["mood"], *found.dev["mood"])}
    assert every == {(text, float(label == "yes")) for text, label in ROWS}
    assert found.rows["pairs"][0].text[1] == "other, with a comma"
    assert read_own(tmp_path).rows == found.rows


def test_dev_rows_of_their_own_leave_all_others_for_training(tmp_path) -> None:
    csv_file(tmp_path / "mood.csv")
    csv_file(tmp_path / "mood.dev.csv", [("new", "no"), ("newer", "yes")])
    found = read_own(tmp_path)
    assert [row.text for row in found.dev["mood"]] == ["new", "newer"]
    assert len(found.rows["mood"]) == 20


def test_one_file_may_name_its_tasks(tmp_path) -> None:
    rows = [(text, label, ("a", "b")[number // 10]) for number, (text, label) in enumerate(ROWS)]
    found = read_own(csv_file(tmp_path / "all.csv", rows, "text,label,task"))
    assert [task.name for task in found.tasks] == ["a", "b"]
    assert (found.name, len(found.rows["a"]) + len(found.dev["a"])) == ("all", 10)


def test_a_listing_says_columns_labels_metrics_and_scales(tmp_path) -> None:
    csv_file(tmp_path / "reviews.csv", [(f"r{n}", str(1 + n % 5), "x") for n in range(20)], "review,stars,extra")
    csv_file(tmp_path / "mood.csv")
    (tmp_path / "tasks.toml").write_text(
        '[[tasks]]\nname = "stars"\nfile = "reviews.csv"\ntext = "review"\nlabel = "stars"\nscale = [1.0, 5.0]\n'
        '[[tasks]]\nname = "mood"\nfile = "mood.csv"\nlabels = ["yes", "no"]\nmetrics = ["matthews", "f1"]\n'
    )
    found = read_own(tmp_path)
    assert found.tasks == (
        Task("stars", ("pearson", "spearman"), scale=(1.0, 5.0)),
        Task("mood", ("matthews", "f1"), ("yes", "no")),
    )
    assert {row.target for row in found.rows["stars"]} == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert read_own(tmp_path / "tasks.toml").rows == found.rows


def test_answers_may_be_whole_texts_each_its_own(tmp_path) -> None:
    csv_file(tmp_path / "sum.csv", [(f"long {n}", f"short {n}") for n in range(10)])
    (tmp_path / "tasks.toml").write_text('[[tasks]]\nname = "sum"\nfile = "sum.csv"\nmetrics = ["rouge-l"]\n')
    found = read_own(tmp_path)
    assert found.tasks == (Task("sum", ("rouge-l",), tuple(f"short {n}" for n in range(10))),)
    row = found.rows["sum"][0]
    assert found.tasks[0].labels[int(row.target)] == str(row.text).replace("long", "short")


def test_parquet_reads_like_the_others_where_pyarrow_is(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"text": [text for text, _ in ROWS], "label": [float(label == "yes") for _, label in ROWS]})
    parquet.write_table(table, tmp_path / "mood.parquet")
    assert read_own(tmp_path).tasks == (Task("mood", ("accuracy",), ("0", "1")),)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "mood.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="pip install pyarrow"):
        read_own(tmp_path)


WRONG = [
    ("text,lable", ROWS, r"mood\.csv, line 2: there is no 'label' \(found: text, lable\)"),
    ("text,label", [*ROWS, ("a", "b", "c")], r"mood\.csv, line 22: expected 2 columns \(got 3\)"),
    ("text,label", [*ROWS, ("", "no")], r"mood\.csv, line 22: the text is empty"),
    ("text,label", [*ROWS, ("t", "maybe")], "the label 'maybe' appears 1 times"),
    ("text,label", [*ROWS, ("t", "")], r"line 22: label must be one of no, yes \(got ''\)"),
    ("text,label", ROWS[::2], "one label only"),
    ("text,label", ROWS[:4], "has 4 rows; give it 5 or more"),
    ("text,label", [], "holds no rows"),
]


@pytest.mark.parametrize(("header", "rows", "message"), WRONG)
def test_what_is_wrong_in_a_file_is_one_sentence(header, rows, message, tmp_path) -> None:
    csv_file(tmp_path / "mood.csv", rows, header)
    with pytest.raises(DataError, match=message) as refused:
        read_own(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("line", ["[1]", "{", '"text"'])
def test_a_line_that_is_no_object_is_refused(line, tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "t", "label": "a"}\n' + line)
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 must be a JSON object"):
        read_own(tmp_path)


LISTINGS = [
    ('file = "mood.csv"\nmetrics = ["bleu"]', "has the metric 'bleu'"),
    ('file = "mood.csv"\nmetrics = ["accuracy", "rouge-l"]', "choose one kind"),
    ('file = "other.csv"', "cannot read"),
    ('file = "mood.doc"', "must be a file of"),
    ('file = "mood.csv"\nscale = [0, 1]', r"line 2: score must be a number \(got 'no'\)"),
    ('file = "mood.csv"\nscale = [1, 0]', "from low to high"),
    ('file = "mood.csv"\n[[tasks]]\nname = "m"\nfile = "mood.csv"', "the task m twice"),
    ('fiel = "mood.csv"', "tasks"),
]


@pytest.mark.parametrize(("text", "message"), LISTINGS)
def test_what_is_wrong_in_a_listing_is_one_sentence(text, message, tmp_path) -> None:
    csv_file(tmp_path / "mood.csv")
    (tmp_path / "tasks.toml").write_text(f'[[tasks]]\nname = "m"\n{text}\n')
    with pytest.raises((DataError, ConfigError), match=message):
        read_own(tmp_path)
