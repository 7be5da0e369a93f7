from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import DataError
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.serve.survey import Survey

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
