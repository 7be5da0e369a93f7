"""What a run records."""

from pathlib import Path

from tanbr.lab.train.curve import Curve


def test_a_curve_forgets_what_comes_after_a_step(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "curve.jsonl")
    for step in (1, 2, 3):
        curve.add(step, "loss", {"a": step / 2})
    with curve.path.open("a") as file:
        file.write('{"step": 4, "lo')  # torn off
    curve.rewind(2)
    assert curve.series("loss", "a") == ([1, 2], [0.5, 1.0])


def test_a_curve_lies_beside_what_the_run_makes(tmp_path: Path) -> None:
    assert Curve.beside(tmp_path / "model").path == Curve.beside(tmp_path / "model.state").path
