import pytest

from tanbr.lab import drive
from tanbr.lab.drive import Pace


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
