"""The default router: its optimism, and what it does when rewards change."""

import numpy as np
import pytest

from tanbr.errors import ConfigError
from tanbr.router import Tanbr, default, gp
from tanbr.router.config import DefaultModeConfig
from tanbr.router.contract import EVEN, K, V, play, toy_reward
from tanbr.router.default import DefaultPolicy
from tanbr.router.known import FIXED
from tanbr.router.shell import Question
from tanbr.router.simplex import Sizes
from tanbr.router.watch import Watch


def after(slots, *, unseen=0.0, noise=0.02, **settings):
    """The policy and its state, after some slots of the toy world."""
    policy = DefaultPolicy.of(Sizes.check(K, V), DefaultModeConfig(**settings))
    rng = np.random.default_rng(0)
    state = policy.start(rng)
    for _ in range(slots):
        decision = policy.choose(state, Question(0, rng.dirichlet(np.ones(V))), rng)
        reward = np.clip(toy_reward(decision.blend) + noise * rng.normal(size=V), 0, 1)
        counts = (rng.random(V) >= unseen).astype(float)
        if counts.any():
            state = policy.learn(state, decision, np.where(counts > 0, reward, np.nan)[None], counts[None], rng)
    return policy, state


def test_open_decisions_are_not_repeated():
    router = Tanbr(K, V)
    play(router, 2)
    for models in (1, 2):
        decisions = [router.ask(EVEN, models=models) for _ in range(4)]
        assert len({decision.blends.tobytes() for decision in decisions}) > 1


def test_an_arm_from_a_warm_start_with_too_many_experts_is_not_played():
    router = Tanbr(4, 2, max_active=2)
    dense = np.array([[0.49, 0.49, 0.02, 0.0]])  # near the blend of two, which is the best
    rewards = np.full((21, 2), 0.1)
    rewards[0] = 1.0
    router.warm_start(np.concatenate([dense, np.repeat(np.eye(4), 5, axis=0)]), rewards)
    for _ in range(10):
        decision = router.ask([0.5, 0.5])
        assert np.count_nonzero(decision.blend) <= 2
        router.tell(decision, [0.5, 0.5])


def test_memory_stays_bounded(monkeypatch):
    monkeypatch.setattr(gp, "ARMS", 16)
    policy, state = after(150, noise=0.2)
    assert len(state.posterior.arms) <= 16
    assert len(policy.expected(state)) <= 17
    assert state.posterior.points.shape == (FIXED, K)


def see(watch, z, *, slot=0, threshold=12.0):
    """One slot of standardised errors, the variance of a change being three times that of a reward."""
    return watch.weighed(np.array(z, dtype=float), np.ones(len(z)), shift=3.0, slot=slot, threshold=threshold)


def test_while_nothing_changes_alarms_are_as_rare_as_the_theory_says():
    """At most one in eʰ rewards on average: one in 148 for h = 5, so 27 in 4,000; five deviations more are allowed."""
    watch, rng = Watch.start(2), np.random.default_rng(0)
    for _ in range(2_000):
        watch, _ = see(watch, rng.normal(size=2), threshold=5.0)
    assert watch.changes.sum() <= 27 + 5 * np.sqrt(27)
    noisy = Watch.start(2)
    for _ in range(400):  # a task noisier than the fit says is held to its own noise
        noisy, _ = see(noisy, rng.normal(size=2) * [1.4, 1.0])
    assert noisy.squares[0] / noisy.seen[0] > 1.5
    assert noisy.changes.tolist() == [0, 0]


def rewards(blend, moved):
    """The first task's best expert is the first, and the last once it has moved; the second task's never changes."""
    return np.array([0.2 + 0.6 * blend[-1 if moved else 0], 0.2 + 0.6 * blend[1]])


def played(router, slots, *, moved, seed=0):
    rng, decisions = np.random.default_rng(seed), []
    for _ in range(slots):
        decisions.append(router.ask([0.7, 0.3]))
        noise = 0.05 * rng.normal(size=2)
        router.tell(decisions[-1], np.clip(rewards(decisions[-1].blend, moved) + noise, 0, 1))
    return decisions


@pytest.fixture
def quick(monkeypatch):
    """A router that fits its kernel, and so begins to watch, after 30 slots."""
    monkeypatch.setattr(default, "FITS", (30,))
    return lambda **settings: Tanbr(3, 2, seed=0, config={"default": settings})


def test_a_changed_task_is_found_explained_and_learned_anew(quick, tmp_path):
    router = quick()
    first = played(router, 60, moved=False)
    assert first[-1].blend[0] > 0.6
    assert first[-1].why.changes == 0
    forgetful = quick(change=0.0)
    played(forgetful, 60, moved=False)
    assert played(forgetful, 60, moved=True)[-1].why.changes == 0
    with pytest.raises(ConfigError, match="change"):
        quick(change=-1.0)

    moved = played(router, 2, moved=True)
    held = router.ask([0.7, 0.3])
    assert held.why.evidence > 0
    router.save(tmp_path / "state.npz")
    other = Tanbr.load(tmp_path / "state.npz")
    assert other.open[-1].why == held.why
    for one in (router, other):
        one.tell(held, [0.2, 0.2])
    moved += played(router, 120, moved=True, seed=1)
    again = played(other, 120, moved=True, seed=1)
    assert [one.why for one in moved[2:]] == [one.why for one in again]  # the watch resumes bit for bit
    assert moved[-1].why.changes >= 1
    assert moved[-1].blend[-1] > 0.6
    assert max(one.why.evidence for one in moved) > 1.0
    assert {one.why.suspect for one in first if one.why.evidence == 0} == {-1}
    assert 0 in {one.why.suspect for one in moved}
