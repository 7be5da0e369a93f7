"""One place for --data: GLUE where its folders are, files of one's own elsewhere; parts never meet."""

import pytest

from tanbr.errors import DataError
from tanbr.lab.tasks import glue
from tanbr.lab.tasks.dataset import Dataset


def test_own_rows_are_in_three_parts_that_never_meet(tmp_path) -> None:
    lines = "".join(f"text {n},{n % 2}\n" for n in range(50))
    (tmp_path / "mood.csv").write_text(f"text,label\n{lines}")
    data = Dataset(str(tmp_path))
    train, held = data.divided()
    parts = [{row.text for row in part["mood"]} for part in (train, held, data.dev())]
    assert [len(part) for part in parts] == [32, 8, 10]
    assert len(set.union(*parts)) == 50
    assert len(data.dev(limit=3)["mood"]) == 3
    assert data.name == tmp_path.name


def test_the_fewest_rows_still_fill_every_part(tmp_path) -> None:
    (tmp_path / "mood.csv").write_text("text,label\na,0\nb,1\nc,0\nd,1\ne,0\n")
    data = Dataset(str(tmp_path))
    assert [len(part["mood"]) for part in (*data.divided(), data.dev())] == [3, 1, 1]


def test_glue_is_known_by_its_folders(tmp_path) -> None:
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "notes.csv").write_text("text,label\n")
    data = Dataset(str(tmp_path))
    assert (data.name, data.tasks) == ("GLUE", glue.TASKS)
    with pytest.raises(DataError, match="cannot read CoLA"):
        data.divided()


def test_a_place_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="no GLUE folder"):
        Dataset(str(tmp_path / "none")).divided()
    with pytest.raises(DataError, match="cannot read"):
        Dataset(str(tmp_path / "none.csv")).divided()
