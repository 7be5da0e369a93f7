import numpy as np
import pytest

from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.serve.config import GuardConfig
from tanbr.serve.engine import Engine
from tanbr.serve.guard import Guard, Refused
from tanbr.serve.labels import label_space

NAMES = [task.name for task in tiny.TASKS]
PROBES = [row for task in tiny.TASKS for row in tiny.generate(task.name, 8, seed=3_000)]


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Engine:
    return Engine(moe, blend=np.full(8, 1 / 8), version=1, spare=True)


def guarded(engine: Engine) -> Guard:
    return Guard(GuardConfig(), engine, label_space(tiny.TASKS, engine.columns), PROBES, tasks=NAMES)


def test_a_blend_is_judged_for_the_mix_at_hand(engine: Engine) -> None:
    guard = guarded(engine)
    even, only = np.full(8, 1 / 8), np.eye(8)
    guard.inspect(engine.live, even)
    staged = engine.prepare(only[6])
    with pytest.raises(Refused, match="less than") as refused:
        guard.inspect(staged, even)  # good at sentiment alone: no blend for all tasks
    assert np.nansum(refused.value.counts) == len(PROBES)
    assert refused.value.reward[6] > 0.8 > np.nanmean(refused.value.reward)
    guard.inspect(staged, only[6])  # where all is sentiment it is
    engine.discard(staged)


def test_nan_is_refused_with_and_without_probes(engine: Engine) -> None:
    engine.swap(np.full(8, 1 / 8))
    head = engine.live.backend.model.classifier.weight  # type: ignore[attr-defined]
    kept = head.detach().clone()
    bare = Guard(GuardConfig(), engine, None, (), tasks=NAMES)
    bare.inspect(engine.live, np.full(8, 1 / 8))
    try:
        head.data.fill_(float("nan"))
        for guard in (guarded(engine), bare):
            with pytest.raises(Refused, match="NaN") as refused:
                guard.inspect(engine.live, np.full(8, 1 / 8))
            assert np.nanmax(refused.value.reward) == 0
    finally:
        head.data.copy_(kept)


def test_live_rewards_that_fall_beyond_chance_are_noticed_and_a_change_of_mix_is_not(engine: Engine) -> None:
    easy, hard = np.eye(8)[0], np.eye(8)[1]

    def after(rewards: list[tuple[np.ndarray, float]]) -> str | None:
        guard = guarded(engine)
        for _ in range(60):
            guard.see(1, easy, 0.9)
            guard.see(1, hard, 0.3)
        guard.opened((2, 3), keep=5)
        for share, reward in rewards:
            guard.see(2, share, reward)
            guard.see(3, easy, 0.9)  # beside it a model that is as good as ever
        judged = guard.judge()
        assert judged is None or judged[0] == 2
        return None if judged is None else judged[1]

    assert after([(easy, 0.4)] * 10) is None  # too few to judge
    assert after([(hard, 0.3)] * 40) is None  # worse on average, but no worse at the task that came
    assert "0.500" in (after([(easy, 0.4)] * 40) or "")
    assert after([(easy, 0.85)] * 40) is None  # within the margin
