import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tanbr.cli import app
from tanbr.errors import ConfigError, DataError
from tanbr.lab.corpus import generated
from tanbr.lab.simulate import Study, simulate
from tanbr.lab.survey import Survey, candidates, survey, survey_path, survey_to
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.moe import embedded
from tanbr.monitor.config import MonitorConfig
from tanbr.serve.dense import DenseModel

K = 8
BLENDS = np.concatenate([np.eye(K), np.full((1, K), 1 / K)])
REWARDS = np.concatenate([np.eye(K), np.full((1, K), 0.25)])
SURVEY = Survey(BLENDS, REWARDS, REWARDS / 2, rows=50, tasks=tuple(task.name for task in tiny.TASKS))


def test_what_is_at_stake_grows_as_mixes_grow_uneven() -> None:
    uneven, even = (SURVEY.stakes(alpha) for alpha in (0.01, 100.0))
    assert uneven["uniform"] == pytest.approx(0.25)
    assert uneven["best_per_mix"] - uneven["best_fixed"] > 0.5
    assert even["best_per_mix"] == pytest.approx(0.25)


def test_it_is_saved_and_read_back(tmp_path: Path) -> None:
    SURVEY.save(tmp_path / "survey.json", command="tanbr survey")
    again = Survey.load(tmp_path / "survey.json")
    assert again.digest == SURVEY.digest
    assert (again.rows, again.tasks, again.method) == (50, SURVEY.tasks, "average")
    (tmp_path / "survey.json").write_text("{}")
    with pytest.raises(DataError, match="holds no survey"):
        Survey.load(tmp_path / "survey.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rewards": 100 * REWARDS}, r"rewards must lie in \[0, 1\] \(got 100\); divide"),
        ({"rewards": -REWARDS}, r"rewards must lie in \[0, 1\]"),
        ({"blends": 0.9 * BLENDS}, "a blend lies outside the simplex"),
        ({"blends": 1.5 * BLENDS - 0.5 / K}, "a blend lies outside the simplex"),
        ({"rewards": REWARDS[:-1]}, "tables of equal length"),
        ({"figures": REWARDS[0]}, "tables of equal length"),
    ],
)
def test_numbers_that_make_no_survey_are_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    replace(SURVEY, **change).save(tmp_path / "survey.json")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=says) as raised:
        Survey.load(tmp_path / "survey.json")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_sha256": "0" * 64}, "was made with other weights"),
        ({"method": "ties"}, "is about blends merged by ties; pass a survey of those by average"),
        ({"tasks": ("weather",)}, "is about weather, not"),
    ],
)
def test_a_survey_of_something_else_is_refused(moe: Moe, change: dict[str, object], says: str) -> None:
    assert SURVEY.check(moe, tiny.TASKS, Path("survey.json")) is SURVEY
    with pytest.raises(DataError, match=says):
        replace(SURVEY, **change).check(moe, tiny.TASKS, Path("survey.json"))  # type: ignore[arg-type]


def test_a_survey_of_answers_by_the_posterior_is_another_one(moe: Moe, tmp_path: Path) -> None:
    made = generated()
    recogniser = made.taught_monitor(MonitorConfig(), seed=0, after=24).snapshot()
    labels, posterior = (
        survey(DenseModel(moe, made.space), made.first_held(24), blends=candidates(8)[8:9], recogniser=one)
        for one in (None, recogniser)
    )
    assert posterior.rewards.mean() > labels.rewards.mean() + 0.02  # the even blend confuses the tasks' words
    assert (labels.answers_by, posterior.answers_by) == ("labels", "posterior")
    path = survey_path(tmp_path / "survey.json", "ties:0.3", answers_by="posterior")
    assert path.name == "survey-ties-0.3-posterior.json"
    posterior.save(path)
    found = Survey.load(path)
    assert found.check(moe, made.tasks, path, answers_by="posterior") is found
    with pytest.raises(DataError, match="answers by posterior; pass a survey of answers by labels"):
        found.check(moe, made.tasks, path)


@pytest.mark.parametrize(("groups", "most"), [(False, 180), (True, 255)])
def test_more_blends_than_are_laid_out_are_refused(moe: Moe, tmp_path: Path, *, groups: bool, most: int) -> None:
    with pytest.raises(ConfigError, match=f"1 to {most} blends"):
        survey_to(tmp_path / "s.json", moe, generated(), blends=most + 1, rows=2, groups=groups, command="test")
    assert not list(tmp_path.iterdir())


def test_a_survey_of_blends_merged_by_regression_is_one_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(embedded.path(), tmp_path / "moe")
    asked = ["survey", str(tmp_path / "moe"), "--grams", "regression", "--rows", "16"]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    study = Study(tmp_path / "moe", slots=4, requests=64, survey=tmp_path / "moe/survey.json", answers="labels")
    with pytest.raises(DataError, match="tanbr survey --method regression"):
        simulate(study, ["best-fixed+regression"], [0], out=tmp_path)
    path = tmp_path / "survey.json"
    bench = study.bench()
    merged = bench.merging("regression").moe
    survey_to(survey_path(path, "regression"), merged, generated(), blends=9, rows=8, command="tanbr survey")
    assert Survey.load(survey_path(path, "regression")).method == "regression"
    shutil.copy(study.survey or "", path)
    simulate(replace(study, survey=path), ["best-fixed+regression", "best-fixed"], [0], out=tmp_path)
    shutil.copy(survey_path(path, "regression"), path)
    with pytest.raises(DataError, match="merged by regression"):
        replace(study, survey=path).bench()
