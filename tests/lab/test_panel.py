from typing import Any, ClassVar

import numpy as np
import pytest

from tanbr.errors import ConfigError, InputError
from tanbr.lab.answers import Answers
from tanbr.lab.compare import Oracle
from tanbr.lab.corpus import generated
from tanbr.lab.methods import Bench, method
from tanbr.lab.rivals import BestKnown
from tanbr.lab.settings import Config
from tanbr.lab.tasks import tiny
from tanbr.lab.world import Contestant, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig, RewardConfig
from tanbr.merge import Moe
from tanbr.serve.check import bytes_of
from tanbr.serve.dense import DenseModel
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import Decision, FloatArray

SPACE = LabelSpace(tiny.TASKS)
ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 4, seed=7, split="test")]
TEXTS = [row.text for row in ROWS]
TASK = np.array([[task.name for task in tiny.TASKS].index(row.task) for row in ROWS])


class Stub:
    """A router that holds the first experts, task v at model v mod G, and remembers what it was told."""

    told: ClassVar[list[tuple[FloatArray, FloatArray]]] = []

    def ask(self, task_mix: FloatArray, *, models: int = 1, confusion: FloatArray | None = None) -> Decision:
        return Decision(0, task_mix, np.eye(8)[:models], np.eye(models)[np.arange(8) % models].T)

    def tell(self, decision: Any, reward: FloatArray, counts: FloatArray | None = None) -> None:
        if counts is not None:
            self.told.append((reward, counts))


def tags() -> Oracle:
    """A mix source that recognises every request of `TEXTS`."""
    return Oracle(mixes=np.full((4, 8), 1 / 8), task_of=dict(zip(TEXTS, TASK.tolist(), strict=True)))


def player(answers: Answers, router: Any, models: int, *, settle: int = 1) -> Contestant:
    """A method that holds a panel."""
    config = LoopConfig(explore="always", rewards=RewardConfig(settle_slots=settle))
    world = StreamWorld(answers.each, SPACE)
    return Contestant(world, router, tags(), start=StartBlend("even", experts=8), models=models, config=config)


@pytest.fixture(scope="module")
def answers(moe: Moe) -> Answers:
    return Answers(DenseModel(moe, generated().space))


def test_a_slot_rewards_by_model_and_task(answers: Answers) -> None:
    Stub.told.clear()
    record = player(answers, Stub(), 3, settle=0).play(ROWS)
    [(reward, counts)] = Stub.told
    assert reward.shape == counts.shape == (3, 8)
    for v in range(8):
        assert counts[:, v].tolist() == [4.0 if g == v % 3 else 0.0 for g in range(3)]
        assert np.isnan(reward[:, v]).tolist() == (counts[:, v] == 0).tolist()
        own = [answers.of(np.eye(8)[v % 3], [text])[0] for text, of in zip(TEXTS, TASK, strict=True) if of == v]
        rows = [row for row, of in zip(ROWS, TASK, strict=True) if of == v]
        assert reward[v % 3, v] == pytest.approx(SPACE.rewards(rows, SPACE.read(rows, own)).mean())
    np.testing.assert_allclose(record.reward, np.nansum(reward, axis=0))
    np.testing.assert_allclose(record.blend[:4], [12 / 32, 12 / 32, 8 / 32, 0])
    assert record.slot == 0


def test_blends_that_stay_are_not_merged_again(answers: Answers) -> None:
    method = player(answers, Stub(), 3)
    versions = [method.play(ROWS).merge_version for _ in range(3)]
    assert versions == [3, 3, 3]


def test_one_expert_a_task_is_the_panel_of_all(answers: Answers) -> None:
    """With G = K and requests that are recognised, nothing is merged: the un-merged MoE with tags."""
    record = player(answers, BestKnown(8, 8, blends=np.eye(8), rewards=np.eye(8)), 8).play(ROWS)
    tagged = answers.each(list(np.eye(8)), TASK, TEXTS)
    assert record.total_reward == pytest.approx(SPACE.rewards(ROWS, SPACE.read(ROWS, tagged)).mean())
    with pytest.raises(InputError, match="models"):
        BestKnown(8, 8, blends=np.eye(8), rewards=np.eye(8)).ask(np.full(8, 1 / 8), models=9)


def test_fixed_panels_of_more_models_earn_more(moe: Moe) -> None:
    bench = Bench(moe, generated(), Config(), moe.path / "survey.json")
    mixes = np.full((2, 8), 1 / 8)
    rewards = [
        method(name).contestant(bench, mixes=mixes, seed=0).play(ROWS).total_reward
        for name in ("best-fixed", "best-fixed@2", "best-per-slot@8")
    ]
    assert rewards[0] < rewards[2]
    assert rewards[1] <= 1
    with pytest.raises(ConfigError, match="1 to 8 models"):
        method("best-fixed@9").contestant(bench, mixes=mixes, seed=0)


def test_memory_grows_by_the_ffns_alone(moe: Moe) -> None:
    one, two, three = (bytes_of(moe, count) for count in (1, 2, 3))
    assert two - one == three - two > 0
    assert one == 4 * sum(weight.numel() for weight in moe.dense().state_dict().values() if weight.is_floating_point())
