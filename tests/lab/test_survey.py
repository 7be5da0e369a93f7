from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import ConfigError, DataError
from tanbr.lab.corpus import generated
from tanbr.lab.survey import candidates, even_groups, survey, survey_path, survey_to
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.monitor.config import MonitorConfig
from tanbr.serve.dense import DenseModel
from tanbr.serve.survey import Survey
from tanbr.tasks.metrics import LabelSpace


def test_each_expert_is_best_at_its_own_task(moe: Moe) -> None:
    rows = {task.name: tiny.generate(task.name, 60, seed=9, split="test") for task in tiny.TASKS}
    measured = survey(DenseModel(moe, LabelSpace(tiny.TASKS)), rows, blends=candidates(8)[:9])
    own, uniform = np.diag(measured.rewards[:8]), measured.rewards[8]
    assert (measured.rewards[:8].argmax(axis=0) == np.arange(8)).sum() >= 7
    assert (own - uniform > 0.1).sum() >= 4


def test_laid_out_blends_start_with_each_expert_alone_and_all_alike() -> None:
    for blends in (candidates(4), even_groups(4)):
        np.testing.assert_array_equal(blends[:4], np.eye(4))
        np.testing.assert_allclose(blends[4], 1 / 4)
        np.testing.assert_allclose(blends.sum(axis=1), 1.0)
    groups = even_groups(4)
    assert len({blend.tobytes() for blend in groups}) == 15
    np.testing.assert_array_equal((groups[5:] > 0).sum(axis=1), [2] * 6 + [3] * 4)
    assert all(len(set(blend[blend > 0])) == 1 for blend in groups)


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
