import numpy as np
import pytest

from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.serve.clients import Clients
from tanbr.serve.config import GuardConfig, RewardConfig
from tanbr.serve.engine import Engine
from tanbr.serve.guard import Guard, Refused
from tanbr.serve.labels import label_space
from tanbr.serve.rows import Given

NAMES = [task.name for task in tiny.TASKS]
PROBES = [row for task in tiny.TASKS for row in tiny.generate(task.name, 8, seed=3_000)]


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Engine:
    return Engine(moe, blend=np.full(8, 1 / 8), version=1, spare=True)


def guarded(engine: Engine) -> Guard:
    return Guard(GuardConfig(), engine, label_space(tiny.TASKS, engine.columns), PROBES, tasks=NAMES, client_share=0.2)


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
    bare = Guard(GuardConfig(), engine, None, (), tasks=NAMES, client_share=0.2)
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
        judged = guard.judge(Clients(RewardConfig()))
        assert judged is None or judged[0] == 2
        return None if judged is None else judged[1]

    assert after([(easy, 0.4)] * 10) is None  # too few to judge
    assert after([(hard, 0.3)] * 40) is None  # worse on average, but no worse at the task that came
    assert "0.500" in (after([(easy, 0.4)] * 40) or "")
    assert after([(easy, 0.85)] * 40) is None  # within the margin


EASY = np.eye(8)[0]
HONEST = [f"c{n}" for n in range(8)]


def of_nine(engine: Engine) -> Guard:
    """A guard that has seen eight clients content with a version, which another one follows."""
    guard = guarded(engine)
    for client in HONEST * 10:
        guard.see(1, EASY, 0.9, client)
    guard.opened((2,), keep=5)
    return guard


@pytest.mark.parametrize("first", [True, False])
def test_one_liar_rolls_back_nothing_however_loud_and_early(engine: Engine, first: bool) -> None:
    guard, clients = of_nine(engine), Clients(RewardConfig())
    for _ in range(8):  # slots: a version may serve many
        for client in HONEST * 8 if not first else ():
            guard.see(2, EASY, 0.9, client)
        for _ in range(64):
            guard.see(2, EASY, 0.0, "liar")
        assert guard.judge(clients) is None
        for client in HONEST * 8 if first else ():
            guard.see(2, EASY, 0.9, client)
        assert guard.judge(clients) is None
        assert guard.reward(2) >= 0.8 * 0.9 - 1e-9  # moved by the liar's share, a fifth
        guard.opened((2,), keep=5)
        kept, guard = guard.remembered(), guarded(engine)
        guard.remember(kept, version=2)


def test_what_several_clients_see_fall_is_rolled_back_and_what_the_only_one_sees(engine: Engine) -> None:
    guard, clients = of_nine(engine), Clients(RewardConfig())
    for client in HONEST * 8:
        guard.see(2, EASY, 0.4, client)
    assert guard.judge(clients) is not None

    def of_one(reward: float) -> Guard:
        guard = guarded(engine)
        for version, said in ((1, 0.9), (2, reward)):
            for _ in range(64):
                guard.see(version, EASY, said, "app")
            guard.opened((2,), keep=5)
        return guard

    assert of_one(0.4).judge(clients) is None  # nobody knows it yet
    clients.learn([Given(0, 0, "feedback", 0, 0.9, None, "app")], np.ones((1, 1)))
    assert of_one(0.4).judge(clients) is not None  # the server's only client: its own application, say
    guard = of_one(0.9)
    for _ in range(64):
        guard.see(2, EASY, 0.0, "stranger")
    assert guard.judge(clients) is None
