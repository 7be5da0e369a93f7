from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tanbr.errors import ConfigError, InputError
from tanbr.lab.answers import Answers, DenseModel
from tanbr.lab.compare import KnownMix
from tanbr.lab.contestant import Scorer
from tanbr.lab.corpus import generated
from tanbr.lab.methods import Bench, method, methods
from tanbr.lab.panel import (
    BestPanel,
    KnownPanel,
    PanelRecord,
    PanelServer,
    SeveralModels,
    as_panel,
    best_rows,
    memory,
)
from tanbr.lab.settings import Config
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.serve.survey import Survey
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import FloatArray

SPACE = LabelSpace(tiny.TASKS)
ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 4, seed=7, split="test")]
TEXTS = [row.text for row in ROWS]
TASK = np.array([[task.name for task in tiny.TASKS].index(row.task) for row in ROWS])


@pytest.mark.parametrize("seed", range(5))
def test_the_best_panel_is_close_to_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, mix = rng.random((12, 5)), rng.dirichlet(np.ones(5))
    for count in (1, 2, 3):
        worth = {rows: rewards[list(rows)].max(axis=0) @ mix for rows in combinations(range(12), count)}
        found = best_rows(rewards, mix, count)
        assert len(set(found)) == count
        assert worth[tuple(sorted(found))] >= (1 - 1 / np.e) * max(worth.values())  # what greedy alone guarantees
        one_changed = [
            worth[tuple(sorted({*found} - {old} | {new}))] for old in found for new in {*range(12)} - {*found}
        ]
        assert max(one_changed) <= worth[tuple(sorted(found))] + 1e-9  # no exchange is left


def test_a_panel_holds_different_blends_and_no_more_than_experts() -> None:
    assert len(as_panel(np.eye(3)[:2], experts=3)) == 2
    with pytest.raises(InputError, match="different blends"):
        as_panel([[1, 0, 0], [1, 0, 0]], experts=3)
    with pytest.raises(InputError, match="1 to 2 blends"):
        as_panel([[1, 0], [0, 1], [0.5, 0.5]], experts=2)
    with pytest.raises(InputError, match="1 to 12 of them"):
        best_rows(np.zeros((12, 2)), np.array([0.5, 0.5]), 13)


def test_requests_go_where_their_tasks_earn_most_and_the_mix_breaks_doubts() -> None:
    panel = KnownPanel(np.eye(2), np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0.5, 0.5]))
    assert panel.assign(np.array([[0.9, 0.1], [0.1, 0.9]])).tolist() == [0, 1]
    doubtful = np.array([[0.5, 0.5]])
    for mix, chosen in (([0.95, 0.05], 0), ([0.05, 0.95], 1)):
        assert KnownPanel(panel.blends, panel.worth, np.array(mix)).assign(doubtful).tolist() == [chosen]


@dataclass(frozen=True, eq=False)
class Choice:
    blends: FloatArray

    def assign(self, posteriors: FloatArray) -> Any:
        return posteriors.argmax(axis=1) % len(self.blends)


class Stub:
    """A router that holds the first experts, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[FloatArray, FloatArray]] = []

    def ask(self, task_mix: FloatArray, *, models: int, confusion: FloatArray | None = None) -> Choice:
        return Choice(np.eye(8)[:models])

    def tell(self, decision: Any, reward: FloatArray, counts: FloatArray) -> None:
        self.told.append((reward, counts))


class Tags:
    """A mix source that recognises every request of `TEXTS`."""

    confusion = None

    def observe(self, texts: Any) -> FloatArray:
        return np.eye(8)[[TASK[TEXTS.index(text)] for text in texts]]

    def close_slot(self) -> Any:
        return KnownMix(np.full((2, 8), 1 / 8)).close_slot()


@pytest.fixture(scope="module")
def answers(moe: Moe) -> Answers:
    return Answers(DenseModel(moe, generated().space))


def test_a_slot_rewards_by_model_and_task(answers: Answers) -> None:
    router = Stub()
    player = SeveralModels(PanelServer(answers), router, Tags(), 8, models=3)
    record = player.play(TEXTS, Scorer(SPACE, ROWS))
    assert isinstance(record, PanelRecord)
    [(reward, counts)] = router.told
    assert reward.shape == counts.shape == (3, 8)
    for v in range(8):
        assert counts[:, v].tolist() == [4.0 if g == v % 3 else 0.0 for g in range(3)]
        assert np.isnan(reward[:, v]).tolist() == (counts[:, v] == 0).tolist()
        own = [answers.of(np.eye(8)[v % 3], [text])[0] for text, of in zip(TEXTS, TASK, strict=True) if of == v]
        rows = [row for row, of in zip(ROWS, TASK, strict=True) if of == v]
        assert reward[v % 3, v] == pytest.approx(SPACE.rewards(rows, SPACE.read(rows, own)).mean())
    np.testing.assert_allclose(record.reward, np.nansum(reward, axis=0))
    np.testing.assert_allclose(record.shares, [12 / 32, 12 / 32, 8 / 32])
    np.testing.assert_allclose(record.blend[:4], [12 / 32, 12 / 32, 8 / 32, 0])
    assert (record.slot, player.slot) == (0, 1)


def test_blends_that_stay_are_not_merged_again(answers: Answers) -> None:
    server = PanelServer(answers)
    assert server.swap(np.eye(8)[:2]) == 2
    assert server.swap(np.eye(8)[1:3]) == 3
    assert server.swap(np.eye(8)[[2, 1]]) == 3
    with pytest.raises(InputError, match="one of 2 models"):
        server.answers(TEXTS[:2], np.array([0, 2]))


def test_one_expert_a_task_is_the_panel_of_all(moe: Moe, answers: Answers) -> None:
    """With G = K and requests that are recognised, nothing is merged: the un-merged MoE with tags."""
    known = Survey.load(moe.path / "survey.json")
    table = np.where(np.eye(8) > 0, 1.0, 0.0)
    player = SeveralModels(PanelServer(answers), BestPanel(known.blends[:8], table), Tags(), 8, models=8)
    record = player.play(TEXTS, Scorer(SPACE, ROWS))
    tagged = answers.each(list(np.eye(8)), TASK, TEXTS)
    assert record.total_reward == pytest.approx(SPACE.rewards(ROWS, SPACE.read(ROWS, tagged)).mean())


def test_names_say_how_many_models() -> None:
    names = [m.name for m in methods(["tanbr+survey", "average", "best-fixed"], models=[1, 2])]
    assert names == ["tanbr+survey", "tanbr@2+survey", "average", "best-fixed", "best-fixed@2"]
    assert [m.name for m in methods(names)] == names  # a result's name is read back
    assert method("best-per-slot@3").models == 3
    for wrong in ("average@2", "tanbr@0", "tanbr@two", "tanbr@"):
        with pytest.raises(ConfigError, match=r"fills no panel|whole number of models"):
            method(wrong)


def test_fixed_panels_of_more_models_earn_more(moe: Moe) -> None:
    bench = Bench(moe, generated(), Config(), moe.path / "survey.json")
    mixes = np.full((2, 8), 1 / 8)
    rewards = [
        method(name).contestant(bench, mixes=mixes, seed=0).play(TEXTS, Scorer(SPACE, ROWS)).total_reward
        for name in ("best-fixed", "best-fixed@2", "best-per-slot@8")
    ]
    assert rewards[0] < rewards[2]
    assert rewards[1] <= 1
    with pytest.raises(ConfigError, match="1 to 8 models"):
        method("best-fixed@9").contestant(bench, mixes=mixes, seed=0)


def test_memory_grows_by_the_ffns_alone(moe: Moe) -> None:
    one, two, three = (memory(moe, count) for count in (1, 2, 3))
    assert two - one == three - two > 0
    assert one == 4 * sum(weight.numel() for weight in moe.dense().state_dict().values() if weight.is_floating_point())
