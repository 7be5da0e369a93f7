from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tanbr.lab import curves
from tanbr.lab.train.curve import Curve


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    kept: list[Figure] = []
    monkeypatch.setattr(curves, "png", lambda canvas, path: kept.append(canvas))
    return kept


def test_many_tasks_and_many_runs_go_into_several_plots(tmp_path: Path, drawn: list[Figure]) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    curve = Curve(tmp_path / "empty.jsonl")
    curves.draw_training(curve, [f"task {v}" for v in range(8)], tmp_path / "a.png")
    curves.draw_losses({f"router {i}": curve for i in range(13)}, tmp_path / "b.png")
    assert [[len(axis.get_lines()) for axis in canvas.axes] for canvas in drawn] == [[4, 4], [5, 5, 3]]
