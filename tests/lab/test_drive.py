import pytest

from tanbr.lab import drive
from tanbr.lab.drive import Pace, read_answer
from tanbr.lab.tasks import tiny
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row


def test_answers_are_scored_by_the_truth() -> None:

    space = LabelSpace(tiny.TASKS)
    rows = [tiny.generate(name, 1, seed=1)[0] for name in ("sentiment", "similarity")]
    right = {"label": space.task("sentiment").labels[int(rows[0].target)]}
    assert read_answer(right, rows[0], space) == rows[0].target
    assert read_answer({"label": "entailment"}, rows[0], space) == -1  # of another task: wrong
    assert read_answer({"label": "x", "grades": {"similarity": rows[1].target}}, rows[1], space) == rows[1].target
    assert space.rewards([Row("sentiment", "x", 1.0)], [-1.0])[0] == 0  # type: ignore[arg-type]


def test_a_pace_is_kept_whatever_answers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(drive.time, "monotonic", lambda: now)
    monkeypatch.setattr(drive.time, "sleep", sleep)
    pace, sent = Pace(10.0), []
    for took in (0.1, 0.3, 5.0, 0.0):  # 4 texts are due every 0.4 seconds; who is late does not hurry afterwards
        pace.wait(4)
        sent.append(round(now - 100, 6))
        now += took
    assert sent == [0, 0.4, 0.8, 5.8]
    Pace(None).wait(1_000)
    assert now == pytest.approx(105.8)
