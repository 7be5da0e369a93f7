"""What was learned of a task fades once its rewards contradict it, and only then."""

import numpy as np
import pytest
from tanbr.router.change import FIRST, Watch
from tanbr.router.posterior import PooledPosterior

from tanbr.errors import ConfigError
from tanbr.router import Tanbr
from tanbr.router.config import DefaultModeConfig
from tanbr.types import Terms

V = 2
SEEN = np.ones(V, dtype=bool)
QUICK = {"default": {"pool": 40, "room": 0, "refits": (30,), "noise_fits": (), "noise": 0.05}}


def see(watch, z, *, slot=0, seen=SEEN):
    """One slot of standardised errors, the variance of a change being three times that of a reward."""
    return watch.see(np.array(z, dtype=float), np.ones(V), shift=3.0, seen=seen, slot=slot).tolist()


def test_the_evidence_is_the_logarithm_of_the_bayes_factor():
    watch = Watch(V, threshold=30.0)
    see(watch, [2.0, 0.0])
    wide = -0.5 * np.log(4.0) - 0.5 * 4.0 / 4.0  # N(0, 1 + 3) at 2, but for what both have
    narrow = -0.5 * 4.0
    assert watch.evidence[0] == pytest.approx(wide - narrow)
    assert watch.evidence[1] == 0.0  # a reward as predicted speaks against a change, and is not saved up


def test_three_rewards_are_needed_however_odd_they_are():
    watch = Watch(V, threshold=12.0)
    assert [see(watch, [50.0, 0.0], slot=slot) for slot in range(4)] == [[], [], [], [0]]
    assert watch.changes.tolist() == [1, 0]
    assert watch.last.tolist() == [3, -1]
    assert watch.evidence.tolist() == [0.0, 0.0]


def test_a_task_that_is_unseen_keeps_its_evidence():
    watch = Watch(V, threshold=12.0)
    see(watch, [3.0, 3.0])
    before = watch.evidence.copy()
    see(watch, [np.nan, 3.0], seen=np.array([False, True]))
    assert watch.evidence[0] == before[0] > 0
    assert watch.evidence[1] > before[1]
    assert np.isfinite(watch.squares).all()


def test_while_nothing_changes_alarms_are_as_rare_as_the_theory_says():
    """At most one in eʰ rewards on average: one in 148 for h = 5, so 27 in 4,000; five deviations more are allowed."""
    watch, rng = Watch(V, threshold=5.0), np.random.default_rng(0)
    for _ in range(2_000):
        see(watch, rng.normal(size=V))
    assert watch.changes.sum() <= 27 + 5 * np.sqrt(27)


def test_a_task_noisier_than_the_fit_is_held_to_its_own_noise():
    watch, rng = Watch(V, threshold=12.0), np.random.default_rng(0)
    for _ in range(400):
        see(watch, rng.normal(size=V) * [1.4, 1.0])
    assert watch.squares[0] / watch.seen[0] > 1.5
    assert watch.changes.tolist() == [0, 0]
    watch.begin()
    assert not watch.squares.any()
    assert FIRST > 1


def test_changes_of_several_tasks_at_once_are_one_of_the_model():
    watch = Watch(8, threshold=12.0)
    assert not watch.together(0)
    watch.last[3] = 100
    assert not watch.together(101)
    watch.last[5] = 120
    assert watch.together(121)
    assert not watch.together(160)  # the first was too long ago
    alone = Watch(1, threshold=12.0)
    alone.last[0] = 7
    assert alone.together(8)


def rewards(blend, moved):
    """The first task's best expert is the first, and the last once it has moved; the second task's never changes."""
    return np.array([0.2 + 0.6 * blend[-1 if moved else 0], 0.2 + 0.6 * blend[1]])


def played(router, slots, *, moved, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(slots):
        decision = router.ask([0.7, 0.3])
        router.tell(decision, np.clip(rewards(decision.blend, moved) + 0.05 * rng.normal(size=V), 0, 1))
    return decision


def test_a_changed_task_is_found_explained_and_learned_anew():
    router = Tanbr(3, V, seed=0, config=QUICK)
    first = played(router, 60, moved=False)
    assert first.blend[0] > 0.6
    assert router.explain(first).changes == 0
    last = played(router, 120, moved=True, seed=1)
    why = router.explain(last)
    assert why.changes >= 1
    assert last.blend[-1] > 0.6
    told = [slot.terms for slot in router.history]
    assert all(isinstance(terms, Terms) for terms in told)
    assert max(terms.evidence for terms in told[60:]) > 1.0
    assert {terms.suspect for terms in told if terms.evidence == 0} == {-1}
    assert 0 in {terms.suspect for terms in told[60:]}


def test_it_never_forgets_where_that_is_turned_off():
    router = Tanbr(3, V, seed=0, config={"default": {**QUICK["default"], "change": 0.0}})
    played(router, 60, moved=False)
    assert router.explain(played(router, 60, moved=True)).changes == 0
    with pytest.raises(ConfigError, match="change"):
        Tanbr(3, V, config={"default": {"change": -1.0}})


def test_the_watch_survives_save_and_load_bit_for_bit(tmp_path):
    router = Tanbr(3, V, seed=0, config=QUICK)
    played(router, 60, moved=False)
    played(router, 2, moved=True)
    held = router.ask([0.7, 0.3])
    assert router.explain(held).evidence > 0
    router.save(tmp_path / "state.npz")
    other = Tanbr.load(tmp_path / "state.npz")
    assert other.explain(held) == router.explain(held)
    for one in (router, other):
        one.tell(held, [0.2, 0.2])
        last = played(one, 30, moved=True, seed=2)
    assert router.explain(last).changes > 0
    assert [slot.terms for slot in other.history] == [slot.terms for slot in router.history]
    np.testing.assert_array_equal(router.ask([0.5, 0.5]).blend, other.ask([0.5, 0.5]).blend)


def test_forgotten_tasks_are_as_if_never_told():
    rng, config = np.random.default_rng(0), DefaultModeConfig(refits=())
    points, blends = rng.dirichlet(np.ones(3), 6), rng.dirichlet(np.ones(3), 8)
    told, half = (PooledPosterior(points.copy(), tasks=V, config=config) for _ in range(2))
    for blend in blends:
        reward = rng.random(V)
        told.observe(blend, reward, np.ones(V))
        half.observe(blend, reward, np.array([0.0, 1.0]))
    told.forget_tasks(np.array([0]))
    np.testing.assert_allclose(told.mean, half.mean, atol=1e-9)
    np.testing.assert_allclose(told.gain, half.gain, atol=1e-9)
    told.forget_tasks(np.array([1]))
    assert told.used == 0
    np.testing.assert_allclose(told.mean, 0.5)


def test_what_rewards_of_one_blend_differ_by_corrects_the_noise():
    rng, pool = np.random.default_rng(0), PooledPosterior(np.eye(3), tasks=V, config=DefaultModeConfig(noise=0.05))
    for _ in range(200):
        pool.observe(np.eye(3)[0], 0.5 + 0.15 * rng.normal(size=V), np.ones(V))
    pool.refit_early()
    assert np.sqrt(pool.noise) == pytest.approx(0.15, rel=5 / np.sqrt(2 * 400))  # five deviations of an estimate
