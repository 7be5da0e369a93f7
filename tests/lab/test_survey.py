from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import ConfigError, DataError, InputError
from tanbr.lab.answers import DenseModel
from tanbr.lab.corpus import generated
from tanbr.lab.rivals.vector_gp import NOISE, VARIANCE, covariance
from tanbr.lab.survey import Table, candidates, even_groups, search, survey, survey_path, survey_to
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.monitor.config import MonitorConfig
from tanbr.serve.survey import Survey
from tanbr.tasks.metrics import LabelSpace
from tanbr.testing.toy import toy_reward

SMALL = Survey(
    blends=np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]),
    rewards=np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.6]]),
    figures=np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.6]]),
)


def test_the_best_fixed_blend_by_hand() -> None:
    assert SMALL.best_fixed.tolist() == [0.5, 0.5]


def test_the_stakes_are_higher_the_more_uneven_the_mixes() -> None:
    gaps = [SMALL.stakes(alpha)["best_per_mix"] - SMALL.stakes(alpha)["best_fixed"] for alpha in (0.1, 1.0, 10.0)]
    assert gaps[0] > gaps[1] > gaps[2] >= 0
    assert SMALL.stakes(0.1)["uniform"] == pytest.approx(0.6)


def test_it_survives_the_disk(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "s.json", command="x")
    loaded = Survey.load(tmp_path / "s.json")
    np.testing.assert_array_equal(loaded.rewards, SMALL.rewards)
    for broken in ("{}", "[" * 100_000):
        (tmp_path / "s.json").write_text(broken)
        with pytest.raises(DataError, match="holds no survey"):
            Survey.load(tmp_path / "s.json")


def test_candidates_start_with_each_expert_alone_and_the_uniform_blend() -> None:
    blends = candidates(8)
    assert len(blends) == 180
    np.testing.assert_array_equal(blends[:8], np.eye(8))
    np.testing.assert_allclose(blends[8], 1 / 8)
    np.testing.assert_allclose(blends.sum(axis=1), 1.0)


def test_each_expert_is_best_at_its_own_task(moe: Moe) -> None:
    rows = {task.name: tiny.generate(task.name, 60, seed=9, split="test") for task in tiny.TASKS}
    measured = survey(DenseModel(moe, LabelSpace(tiny.TASKS)), rows, blends=candidates(8)[:9])
    own, uniform = np.diag(measured.rewards[:8]), measured.rewards[8]
    assert (measured.rewards[:8].argmax(axis=0) == np.arange(8)).sum() >= 7
    assert (own - uniform > 0.1).sum() >= 4


def test_groups_are_even_and_start_as_candidates_do() -> None:
    blends = even_groups(4)
    assert len(blends) == len({blend.tobytes() for blend in blends}) == 15
    np.testing.assert_array_equal(blends[:4], np.eye(4))
    np.testing.assert_allclose(blends[4], 1 / 4)
    np.testing.assert_array_equal((blends[5:] > 0).sum(axis=1), [2] * 6 + [3] * 4)
    assert all(len(set(blend[blend > 0])) == 1 for blend in blends)


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
    with pytest.raises(ConfigError, match=f"at most {most} blends"):
        survey_to(tmp_path / "s.json", moe, generated(), blends=most + 1, rows=2, groups=groups, command="test")
    assert not list(tmp_path.iterdir())


K, V = 4, 2
CORNERS = np.vstack([np.eye(K), np.full(K, 1 / K)])
BEST = np.array([[0.7, 0.3, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])  # a task's best blend


def reward(blend: np.ndarray) -> np.ndarray:
    return 0.1 + 0.8 * np.exp(-2.0 * ((blend - BEST) ** 2).sum(axis=1))


def start() -> Table:
    return Table(CORNERS, np.array([reward(x) for x in CORNERS]))


def test_expectation_by_hand() -> None:
    table = Table(np.eye(2), np.array([[0.2], [0.6]]))
    near = float(covariance(np.eye(2)[:1], np.eye(2)[1:])[0, 0])
    total = VARIANCE + NOISE**2
    weight = (VARIANCE - near) / (total - near)  # of the deviation from the centre, 0.4
    mean, deviation = table.expected(np.eye(2))
    assert mean[:, 0] == pytest.approx([0.4 - 0.2 * weight, 0.4 + 0.2 * weight])
    explained = (VARIANCE**2 * total - 2 * VARIANCE * near**2 + near**2 * total) / (total**2 - near**2)
    assert deviation == pytest.approx([np.sqrt(VARIANCE - explained)] * 2)
    assert table.best_for([1.0]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("mix", "best"), [([1, 0], 0), ([0, 1], 1)], ids=["first task", "second task"])
def test_it_finds_the_best_fixed_blend(mix, best) -> None:
    found = search(reward, start(), mixes=mix, evaluations=40, rng=np.random.default_rng(0))
    assert len(found.blends) == len(CORNERS) + 40
    assert np.abs(found.best_for(mix) - BEST[best]).max() < 0.11
    assert reward(found.best_for(mix))[best] > 0.88 > start().rewards[:, best].max()


def test_mixes_take_turns_in_one_table() -> None:
    mixes = np.array([[0.9, 0.1], [0.1, 0.9]])
    found = search(reward, start(), mixes=mixes, evaluations=60, rng=np.random.default_rng(0))
    np.testing.assert_allclose(found.rewards, [reward(x) for x in found.blends])  # measured, all of them
    best = np.array([reward(found.best_for(mix)) @ mix for mix in mixes])
    fixed = (found.rewards @ [0.5, 0.5]).max()
    assert (best > 0.8).all()
    assert best.mean() > fixed + 0.1


def test_no_blend_is_tried_twice_nor_with_too_many_experts() -> None:
    tried = []
    rng = np.random.default_rng(1)
    search(
        lambda x: (tried.append(x), toy_reward(x, V))[1],
        start(),
        mixes=[0.5, 0.5],
        evaluations=25,
        rng=rng,
        max_active=2,
    )
    assert all(np.count_nonzero(x) <= 2 for x in tried)
    everything = np.vstack([CORNERS, tried])
    assert len(np.unique(everything.round(6), axis=0)) == len(everything)


def test_what_is_no_table_is_refused() -> None:
    for blends, rewards in (
        (np.eye(2), np.zeros((3, 1))),
        (np.eye(2), np.full((2, 1), np.nan)),
        (np.eye(2), np.zeros(2)),
    ):
        with pytest.raises(InputError, match="a table needs"):
            Table(blends, rewards)
    with pytest.raises(InputError, match="task mix"):
        search(reward, start(), mixes=[1.0], evaluations=1, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="reward"):
        search(lambda _: np.array([2.0, 0.0]), start(), mixes=[1, 0], evaluations=1, rng=np.random.default_rng(0))
