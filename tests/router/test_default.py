"""The default router: its tree, its optimism, and what it does when rewards change."""

import numpy as np
import pytest

from tanbr.errors import ConfigError
from tanbr.router import Tanbr, default, gp
from tanbr.router.config import DefaultModeConfig, RouterConfig
from tanbr.router.contract import EVEN, K, V, play, toy_reward
from tanbr.router.default import GpTree
from tanbr.router.known import BETA_HALF, FIXED, LEARNED_HALF
from tanbr.router.shell import Question
from tanbr.router.simplex import Sizes
from tanbr.router.tree import DEEPEST, SNAP, VertexTree
from tanbr.router.watch import Watch


def default_router(**settings):
    return Tanbr(K, V, config=RouterConfig.model_validate({"default": settings}))


def after(slots, *, unseen=0.0, noise=0.02, **settings):
    """The policy and its state, after some slots of the toy world."""
    policy = GpTree.of(Sizes.check(K, V), DefaultModeConfig(**settings))
    rng = np.random.default_rng(0)
    state = policy.start(rng)
    for _ in range(slots):
        decision = policy.choose(state, Question(0, rng.dirichlet(np.ones(V))), rng)
        reward = np.clip(toy_reward(decision.blend) + noise * rng.normal(size=V), 0, 1)
        counts = (rng.random(V) >= unseen).astype(float)
        if counts.any():
            state = policy.learn(state, decision, np.where(counts > 0, reward, np.nan)[None], counts[None], rng)
    return policy, state


def test_the_chosen_blend_has_at_least_the_highest_bound_of_all_kept_candidates():
    (policy, state), mix = after(40), np.array([0.4, 0.3, 0.2, 0.1])
    pool = state.posterior
    bound = pool.mean @ mix + policy.beta(state) * np.sqrt(pool.variance_of(mix, pool.gain))
    bound[policy.nodes(state)][~state.tree.used] = -np.inf
    assert policy.choose(state, Question(0, mix), None).why.bound >= bound.max() - 1e-9


def test_optimism_falls_as_slots_are_told_but_no_faster_than_there_was_something_to_learn(monkeypatch):
    monkeypatch.setattr(default, "FITS", ())
    monkeypatch.setattr(default, "EARLY_FITS", ())
    policy, state = after(0)
    decision = policy.choose(state, Question(0, EVEN), None)
    for _ in range(80):
        state = policy.learn(state, decision, np.full((1, V), 0.5), np.ones((1, V)), None)
    share = policy.prior.noise / state.posterior.prior  # of the prior's variance
    left = share / (share + np.arange(80))  # before the n-th reward of one blend
    assert state.learned == pytest.approx(np.sqrt(left).sum())
    many = after(80)[1]
    assert many.told == state.told == 80.0
    assert many.learned > 2 * state.learned
    assert policy.beta(many) < policy.beta(state) < 2.0
    assert policy.beta(state) == pytest.approx(0.5 + 1.5 * 0.5 ** (state.learned / LEARNED_HALF))
    assert state.learned / LEARNED_HALF < 80 / BETA_HALF


def test_open_decisions_are_not_repeated():
    router = default_router()
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


def test_memory_and_candidates_stay_bounded(monkeypatch):
    monkeypatch.setattr(gp, "ARMS", 16)
    policy, state = after(150, noise=0.2, room=30)
    assert len(state.posterior.arms) <= 16
    assert len(policy.view(state)) <= 30
    assert state.posterior.points.shape == (FIXED + 30, K)


def test_kept_posterior_does_not_drift_from_a_fresh_one():
    policy, state = after(150, unseen=0.2)
    fresh = gp.rebuild(policy.prior, state.posterior)
    used = np.ones(len(fresh.mean), dtype=bool)
    used[policy.nodes(state)] = state.tree.used
    # 150 rank-one changes of a matrix whose condition is at most 1 + n·prior/noise ≈ 7000 against one inversion
    bound = 150 * 192 * 7000 * np.finfo(float).eps
    assert np.abs(fresh.mean[used] - state.posterior.mean[used]).max() < bound
    assert np.abs(fresh.gain[used] - state.posterior.gain[used]).max() < bound


def test_the_tree_goes_deep_where_reward_is_high():
    router = default_router()
    play(router, 120)
    tree = router.tree
    best = np.array([toy_reward(x)[0] for x in tree.blend])
    assert tree.depth.max() >= 3
    assert best[tree.depth >= 3].mean() > best[0] + 0.1


def test_children_lie_halfway_to_the_most_promising_experts_then_a_quarter():
    sizes = Sizes(4, 2, 4)
    tree = VertexTree.root(sizes, room=30)
    children = tree.offspring(0, np.arange(4), sizes)
    grown, rows = tree.added(0, children)
    assert tree.free == 29  # the smaller tree is as it was
    assert np.allclose(children[1], 0.5 * np.full(4, 0.25) + 0.5 * np.eye(4)[1])
    assert np.allclose(grown.offspring(int(rows[0]), np.arange(4), sizes)[2], 0.75 * children[0] + 0.25 * np.eye(4)[2])
    wide = Sizes(20, 2, 2)
    many = VertexTree.root(wide, room=1).offspring(0, np.array([7, 3, 11, *range(3), *range(12, 20), 4, 5, 6]), wide)
    assert len(many) == 16
    assert many.argmax(axis=1).tolist()[:3] == [7, 3, 11]
    assert (np.count_nonzero(many, axis=1) <= 2).all()
    assert 0.5 * 0.5**DEEPEST >= SNAP > 0.5 * 0.5 ** (DEEPEST + 1)  # deeper ones would be played as their parent


def see(watch, z, *, slot=0, threshold=12.0):
    """One slot of standardised errors, the variance of a change being three times that of a reward."""
    return watch.weighed(np.array(z, dtype=float), np.ones(len(z)), shift=3.0, slot=slot, threshold=threshold)


def test_the_evidence_is_the_logarithm_of_the_bayes_factor():
    watch, _ = see(Watch.start(2), [2.0, 0.0], threshold=30.0)
    wide = -0.5 * np.log(4.0) - 0.5 * 4.0 / 4.0  # N(0, 1 + 3) at 2, but for what both have
    assert watch.evidence[0] == pytest.approx(wide + 0.5 * 4.0)
    assert watch.evidence[1] == 0.0  # a reward as predicted speaks against a change, and is not saved up


def test_three_rewards_are_not_enough_however_odd_they_are_and_an_unseen_task_keeps_its_evidence():
    watch = Watch.start(2)
    for slot in range(4):
        watch, changed = see(watch, [50.0, 0.0], slot=slot)
        assert changed.tolist() == [0] * (slot == 3)
    assert (watch.changes.tolist(), watch.last.tolist(), watch.evidence.tolist()) == ([1, 0], [3, -1], [0.0, 0.0])
    before, _ = see(Watch.start(2), [3.0, 3.0])
    watch, _ = see(before, [np.nan, 3.0])
    assert watch.evidence[0] == before.evidence[0] > 0
    assert watch.evidence[1] > before.evidence[1]
    assert np.isfinite(watch.squares).all()


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


def test_changes_of_several_tasks_at_once_are_one_of_the_model():
    last = np.full(8, -1)
    for task, when in ((3, 100), (5, 120)):
        assert not Watch(*np.zeros((4, 8)), last).together(when)
        last = np.where(np.arange(8) == task, when, last)
    assert Watch(*np.zeros((4, 8)), last).together(121)
    assert not Watch(*np.zeros((4, 8)), last).together(160)  # the first was too long ago
    assert Watch(*np.zeros((4, 1)), np.array([7])).together(8)


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
    monkeypatch.setattr(default, "EARLY_FITS", ())
    return lambda **settings: Tanbr(3, 2, seed=0, config={"default": {"room": 0, **settings}})


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
    assert other.explain(held.id) == held.why
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
