"""Merges by regression in the comparison: measured on the command line, chosen by a method's name."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tanbr.cli import app
from tanbr.errors import DataError
from tanbr.lab.corpus import generated
from tanbr.lab.settings import parse
from tanbr.lab.simulate import Study, simulate
from tanbr.lab.survey import survey_path, survey_to
from tanbr.moe import embedded
from tanbr.moe.text import TextEncoder
from tanbr.serve.build import build
from tanbr.serve.survey import Survey


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("regression") / "moe"
    shutil.copytree(embedded.path(), folder)
    done = CliRunner().invoke(app, ["survey", str(folder), "--grams", "regression", "--rows", "16"])
    assert done.exit_code == 0, done.output
    assert "grams" in done.output
    return Study(folder, slots=4, requests=64, survey=folder / "survey.json")


def test_an_even_blend_by_regression_is_regmean_and_no_average(study: Study, tmp_path: Path) -> None:
    names = ["average", "average+regression", "proportional+regression", "tanbr+regression", "regmean"]
    outcomes = {one.method: one for one in simulate(study, names, [0], out=tmp_path)}
    rewards = {name: np.mean([r.total_reward for r in one.records]) for name, one in outcomes.items()}
    assert outcomes["average+regression"].facts["grams"] == 16
    assert "grams" not in outcomes["average"].facts
    assert abs(rewards["average+regression"] - rewards["regmean"]) < 0.06  # 16 rows a task there, 64 here
    assert rewards["average+regression"] > rewards["average"] + 0.03


def test_its_survey_is_one_of_its_own(study: Study, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tanbr survey --method regression"):
        simulate(study, ["best-fixed+regression"], [0], out=tmp_path)
    path = tmp_path / "survey.json"
    bench = study.bench()
    survey_to(
        survey_path(path, "regression"),
        bench.merging("regression").moe,
        generated(),
        blends=9,
        rows=8,
        command="tanbr survey",
    )
    assert Survey.load(survey_path(path, "regression")).method == "regression"
    shutil.copy(study.survey or "", path)
    simulate(replace(study, survey=path), ["best-fixed+regression", "best-fixed"], [0], out=tmp_path)
    shutil.copy(survey_path(path, "regression"), path)
    with pytest.raises(DataError, match="merged by regression"):
        replace(study, survey=path).bench()


def test_a_server_merges_by_regression(study: Study, tmp_path: Path) -> None:
    live = build(
        study.checkpoint,
        config=parse({"serve": {"method": "regression", "threads": 1, "answers": "labels"}}).serve,
        state=tmp_path,
    )
    bench = study.bench()
    live.start()
    answer = live.submit(["its plot is dull"]).result(30).logits
    live.stop()
    inputs = TextEncoder.of(bench.moe.path, vocab_size=10**6)(["its plot is dull"])
    away = [
        np.abs(answer - moe.dense()(**inputs).logits.detach().numpy()).max()
        for moe in (bench.merging("regression").moe, bench.moe)
    ]
    assert 100 * away[0] < away[1]  # rounding against another merge
