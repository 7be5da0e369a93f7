import json
from pathlib import Path
from typing import Any

import pytest

from tanbr.errors import StateError
from tanbr.lab import jobs
from tanbr.lab.jobs import Job, do, load, place


def job(facts: Any = None) -> Job:
    return Job("one", lambda tick: tick(1, 2, "half") or {"value": 1.0}, facts or {"seed": 0})


def test_a_result_is_kept_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    assert load(tmp_path, job()) is None
    done = do(tmp_path, job(), lambda *news: heard.append(news))
    monkeypatch.setattr(jobs, "commit", lambda: "another")
    assert load(tmp_path, job()) == done
    assert (done.result, heard) == ({"value": 1.0}, [(1, 2, "half")])
    assert json.loads(place(tmp_path, job()).read_text())["commit"] == done.commit != "another"


def test_an_interrupted_job_leaves_nothing(tmp_path: Path) -> None:
    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do(tmp_path, Job("one", stop, {}))
    assert not list(tmp_path.iterdir())


def test_a_result_of_other_settings_is_refused(tmp_path: Path) -> None:
    do(tmp_path, job())
    with pytest.raises(StateError, match="other settings"):
        load(tmp_path, job({"seed": 1}))


@pytest.mark.parametrize("text", ["", "[]", '{"facts": {}}', "[" * 100_000])
def test_a_broken_result_is_named(tmp_path: Path, text: str) -> None:
    place(tmp_path, job()).write_text(text)
    with pytest.raises(StateError, match=r"one\.json holds no result"):
        load(tmp_path, job())
