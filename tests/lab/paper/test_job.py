import json
from pathlib import Path
from typing import Any

import pytest

from tanbr.errors import StateError
from tanbr.lab import report
from tanbr.lab.paper.job import Job, Tick, place, run


def counted(name: str, calls: list[str], *, facts: Any = None, fails: bool = False) -> Job:
    def work(tick: Tick) -> dict[str, float]:
        tick(1, 2, "half")
        calls.append(name)
        if fails:
            raise KeyboardInterrupt
        return {"value": float(len(calls))}

    return Job(name, work, facts or {"seed": 0})


def test_a_job_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    calls: list[str] = []
    both = [counted("one", calls), counted("two", calls), counted("one", calls)]
    first = run(both, out=tmp_path)
    again = run(both, out=tmp_path)
    assert calls == ["one", "two"]
    assert {name: kept.result for name, kept in first.items()} == {name: kept.result for name, kept in again.items()}


def test_an_interrupted_run_keeps_what_was_done_and_goes_on(tmp_path: Path) -> None:
    calls: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run([counted("one", calls), counted("two", calls, fails=True), counted("three", calls)], out=tmp_path)
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["one.json"]
    run([counted("one", calls), counted("two", calls), counted("three", calls)], out=tmp_path)
    assert calls == ["one", "two", "two", "three"]


def test_results_of_other_settings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    calls: list[str] = []
    run([counted("one", calls)], out=tmp_path)
    with pytest.raises(StateError, match="other settings"):
        run([counted("two", calls), counted("one", calls, facts={"seed": 1})], out=tmp_path)
    assert calls == ["one"]


@pytest.mark.parametrize("text", ["", "[]", '{"facts": {}}', "[" * 100_000])
def test_a_broken_result_is_named(tmp_path: Path, text: str) -> None:
    job = counted("one", [])
    place(tmp_path, job).parent.mkdir(parents=True)
    place(tmp_path, job).write_text(text)
    with pytest.raises(StateError, match=r"one\.json is no result of reproduce"):
        run([job], out=tmp_path)


def test_a_result_says_which_commit_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = counted("one", [])
    run([job], out=tmp_path)
    assert json.loads(place(tmp_path, job).read_text())["commit"] == report.commit()
    monkeypatch.setattr(report, "commit", lambda: "another")
    assert run([job], out=tmp_path)["one"].commit != "another"


def test_who_watches_hears_of_every_job_that_runs(tmp_path: Path) -> None:
    heard: list[tuple[Any, ...]] = []
    for _ in range(2):
        run(
            [counted("one", [])],
            out=tmp_path,
            moved=lambda *news: heard.append(news),
            finished=lambda name, kept: heard.append((name, kept.result)),
        )
    assert heard == [("one", 0, 1, ""), ("one", 1, 2, "half"), ("one", {"value": 1.0})]
