"""The self-check: what it measures is what is served, and what it takes is the smallest that is good enough."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import OutputError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.serve.build import Known, build, known_of
from tanbr.serve.check import LEAST, SHARE, Check, checked, divided, grouped, most_models, sizes
from tanbr.serve.config import ServeConfig
from tanbr.serve.records import CheckView, Way
from tanbr.tasks.rows import Row

QUIET = ServeConfig(slot_seconds=3600.0, threads=1, workers=1)


@pytest.fixture(scope="module")
def about() -> Known:
    return known_of(open_moe(embedded.path()), None)


@pytest.fixture(scope="module")
def made(about: Known, tmp_path_factory: pytest.TempPathFactory) -> Check:
    found = checked(about, ServeConfig(), tmp_path_factory.mktemp("state"), monitor=None, report=lambda *_: None)
    assert found is not None
    return found


def way(models: int, reward: float, method: str = "average") -> Way:
    return Way(method, models, (0,), (reward,), models)


def test_the_smallest_panel_within_a_point_of_the_best_is_taken() -> None:
    ways = [way(1, 0.70), way(1, 0.79, "regression"), way(2, 0.895), way(2, 0.891, "regression"), way(3, 0.90)]
    view = CheckView(tasks=("a",), rows=1, alone=(1.0,), alone_bytes=1, base=(), ways=tuple(ways))
    assert view.taken == ways[2]
    assert replace(view, ways=(*ways, way(4, 0.95))).taken.models == 4
    assert replace(view, method="average", ways=tuple(ways[:2])).taken == ways[0]


def test_rows_that_are_held_back_teach_nothing(about: Known) -> None:
    names = [task.name for task in about.tasks]
    held, rest = divided(about.rows, names, parameters=10**6)
    assert {row.task for row in held} == set(names)
    assert not {id(row) for row in held} & {id(row) for row in rest}
    assert len(held) + len(rest) == len(about.rows)
    assert len(divided(about.rows, names, parameters=10**9)[0]) < len(held)  # a large model is asked less
    few = [Row("a", f"text {n}", 0.0) for n in range(SHARE * LEAST - 1)]
    assert divided(few, ["a"], parameters=1)[0] == []


def test_tasks_that_lose_least_by_it_share_a_model() -> None:
    shared = np.array([[0.9, 0.5, 0.88], [0.5, 0.9, 0.4], [0.88, 0.4, 0.9]])
    groups = grouped(shared, 2)
    assert groups[0] == groups[2] != groups[1]


def test_memory_counts_the_models_that_answer(about: Known) -> None:
    one, more = sizes(about.moe)
    assert most_models(about.moe, None) == about.moe.num_experts - 1
    assert most_models(about.moe, (one + 2 * more) // 2, "bf16") == 3


def test_merging_by_what_experts_see_keeps_more_and_more_models_keep_most(made: Check) -> None:
    reward = {(one.method, one.models): one.reward for one in made.ways}
    assert reward["regression", 1] > reward["average", 1]
    assert made.taken.reward > reward["regression", 1]
    assert made.taken.reward > 0.9 * np.mean(made.alone)
    assert made.advice == ""
    blends, earned, counts = made.known
    assert len(blends) == len(earned) == len(counts) > 8
    assert ((counts > 0) == np.isfinite(earned)).all()
    np.testing.assert_allclose(blends.sum(axis=1), 1)


def test_what_was_measured_is_kept_until_rows_or_limits_change(about: Known, made: Check, tmp_path: Path) -> None:
    steps: list[str] = []

    def found(config: ServeConfig) -> Check | None:
        return checked(about, config, tmp_path, monitor=None, report=lambda what, *_: steps.append(what))

    first = found(ServeConfig(models=1, method="average"))
    assert first is not None
    assert steps
    steps.clear()
    assert found(ServeConfig(models=1, method="average")) == first
    assert not steps
    (tmp_path / "check.json").write_text("{")  # damaged: measured anew
    assert found(ServeConfig(models=1, method="average")) == first
    one, _ = sizes(about.moe)
    limited = found(ServeConfig(memory=one, method="average"))
    assert limited is not None
    assert [way.models for way in limited.ways] == [1]
    assert "merged, these experts keep" in limited.advice


def test_a_server_serves_what_was_taken_and_says_so(tmp_path: Path) -> None:
    config = QUIET.model_copy(update={"memory": 2_000_000, "method": "average"})  # by which one model is not enough
    service = build(None, config=config, state=tmp_path, check=True)
    view = service.state().check
    assert view is not None
    assert service.info.models == view.taken.models > 1
    assert service.engine.moe.method.name == view.taken.method
    groups = np.array(view.taken.groups)
    assert [set(model.tasks) for model in service.state().models] == [
        {name for name, group in zip(view.tasks, groups, strict=True) if group == place}
        for place in range(view.taken.models)
    ]
    assert service.stop()
    again = build(None, config=config, state=tmp_path, check=True)
    kept = again.state().check
    assert kept is not None
    assert replace(kept, method=None) == view
    assert again.stop()


def test_a_state_goes_on_by_the_method_it_was_begun_with(tmp_path: Path) -> None:
    begun = build(None, config=QUIET.model_copy(update={"memory": 2_000_000}), state=tmp_path)  # nothing is measured
    assert begun.engine.moe.method.name == "average"
    assert begun.stop()
    again = build(None, config=QUIET.model_copy(update={"memory": 2_000_000}), state=tmp_path, check=True)
    assert again.engine.moe.method.name == "average"  # though regression earns more
    assert again.stop()


def test_without_labels_one_sentence_says_why_nothing_is_measured(tmp_path: Path) -> None:
    history = tmp_path / "past.jsonl"
    lines = [{"text": f"text {n}", "task": "sentiment"} for n in range(40)]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said: list[str] = []
    service = build(
        None,
        config=QUIET,
        state=tmp_path / "state",
        history=history,
        check=True,
        report=lambda text, *_: said.append(text),
    )
    assert "no self-check: the history has too few labelled rows: 24 a task are enough" in said
    assert any(one.startswith("40 texts of a history are too few to judge a precision by") for one in said)
    assert service.info.models == 1
    assert service.stop()


def test_a_check_that_fails_half_way_leaves_nothing_half_written(
    about: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Moe, "merge_into", breaks)
    with pytest.raises(OutputError, match="no space left on device; nothing was left behind"):
        checked(about, ServeConfig(), tmp_path, monitor=None, report=lambda *_: None)
    assert not (tmp_path / "check.json").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
