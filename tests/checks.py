"""What every router must do: each check takes a way to make one, `make(experts, tasks, **options)`."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tanbr.errors import DecisionError, InputError, StateError, TanbrError
from tanbr.router.ask_tell import AskTell
from tanbr.types import Decision

Make = Callable[..., AskTell]
K, V = 5, 4
EVEN = np.full(V, 1 / V)


def toy_reward(blend: np.ndarray, tasks: int = V) -> np.ndarray:
    """Smooth, and best for every task at three parts of expert 0 and one of expert 1."""
    target = np.zeros(len(blend))
    target[:2] = 0.75, 0.25
    return np.full(tasks, 0.1) + 0.8 * np.exp(-2.0 * ((blend - target) ** 2).sum())


def play(router: AskTell, slots: int, *, seed: int = 0, unseen: float = 0.0, noise: float = 0.02) -> np.ndarray:
    """Ask and tell for some slots with random mixes; the blends (slots, K)."""
    rng = np.random.default_rng(seed)
    blends = []
    for _ in range(slots):
        decision = router.ask(rng.dirichlet(np.ones(router.tasks)))
        reward = np.clip(toy_reward(decision.blend, router.tasks) + noise * rng.normal(size=router.tasks), 0, 1)
        reward[rng.random(router.tasks) < unseen] = np.nan
        router.tell(decision, reward)
        blends.append(decision.blend)
    return np.array(blends)


def check_same_seed_same_choices(make: Make, tmp_path: Path) -> None:
    assert np.array_equal(play(make(K, V, seed=3), 40), play(make(K, V, seed=3), 40))


def check_blends_are_feasible(make: Make, tmp_path: Path) -> None:
    for most in (1, 2, K):
        blends = play(make(K, V, max_active=most), 30, unseen=0.3)
        assert np.allclose(blends.sum(axis=1), 1.0, atol=1e-9)
        assert (blends >= 0).all()
        assert (np.count_nonzero(blends, axis=1) <= most).all()


def check_decisions_cannot_be_changed(make: Make, tmp_path: Path) -> None:
    mix = EVEN.copy()
    decision = make(K, V).ask(mix)
    mix[0] = 9.0
    assert decision.task_mix[0] == EVEN[0]
    with pytest.raises(ValueError, match="read-only"):
        decision.blend[0] = 0.5


def check_resumes_bit_for_bit(make: Make, tmp_path: Path) -> None:
    router = make(K, V, seed=1)
    play(router, 45, unseen=0.2)
    held = router.ask(EVEN)
    router.save(tmp_path / "state.npz")
    resumed = type(router).load(tmp_path / "state.npz")
    for one in (router, resumed):
        one.tell(held, toy_reward(held.blend))
    assert np.array_equal(play(router, 100, seed=7, unseen=0.2), play(resumed, 100, seed=7, unseen=0.2))
    assert [told.decision.id for told in router.history] == [told.decision.id for told in resumed.history]
    assert router.explain(10) == resumed.explain(10) or np.isnan(router.explain(10).mean)


def check_late_and_out_of_order(make: Make, tmp_path: Path) -> None:
    router = make(K, V)
    decisions = [router.ask(EVEN) for _ in range(8)]
    assert len({decision.id for decision in decisions}) == 8
    assert router.open == tuple(decisions)
    for decision in reversed(decisions):
        router.tell(decision.id, toy_reward(decision.blend))
    assert router.open == ()
    assert [told.decision.id for told in router.history] == [d.id for d in reversed(decisions)]


def check_bad_input_changes_nothing(make: Make, tmp_path: Path) -> None:
    router, twin = make(K, V, seed=2), make(K, V, seed=2)
    play(router, 12), play(twin, 12)
    held, same = router.ask(EVEN), twin.ask(EVEN)
    told = router.history[-1].decision
    good = np.full(V, 0.5)
    bad_mixes: list[Any] = [
        np.full(V, 0.3), np.ones(V + 1) / (V + 1), [np.nan, 0.5, 0.25, 0.25], [-0.5, 0.5, 0.5, 0.5],
        np.zeros(V), [np.inf, 0, 0, 0], "mix", None, EVEN[None],
    ]  # fmt: skip
    for mix in bad_mixes:
        with pytest.raises(InputError):
            router.ask(mix)
    bad_rewards: list[Any] = [good[:-1], good + 0.6, good - 0.6, [np.inf, 0, 0, 0], "reward", None, good[None]]
    for reward in bad_rewards:
        with pytest.raises(InputError):
            router.tell(held, reward)
    for counts in (np.zeros(V), -np.ones(V), np.full(V, np.nan), np.ones(V - 1)):
        with pytest.raises(InputError):
            router.tell(held, good, counts)
    foreign = Decision(held.id, held.task_mix, np.eye(K)[0] * 0.5 + 0.5 / K)
    for decision in (told, told.id, 10**9, -1, "1", None, True, foreign):
        with pytest.raises(DecisionError):
            router.tell(decision, good)
    for blends, rewards in ((np.eye(K), np.zeros((2, V))), (np.ones((1, K)), good[None]), ("a", "b"), (good, good)):
        with pytest.raises(InputError):
            router.warm_start(blends, rewards)
    router.tell(held, good), twin.tell(same, good)
    assert np.array_equal(play(router, 30, seed=5), play(twin, 30, seed=5))


def check_bad_sizes_are_refused(make: Make, tmp_path: Path) -> None:
    for experts, tasks, options in (
        (1, V, {}), (0, V, {}), (2.5, V, {}), ("5", V, {}), (K, 0, {}), (K, -1, {}), (K, True, {}),
        (K, V, {"max_active": 0}), (K, V, {"max_active": K + 1}), (K, V, {"max_active": 1.5}),
    ):  # fmt: skip
        with pytest.raises(InputError):
            make(experts, tasks, **options)


def check_bad_states_are_refused(make: Make, tmp_path: Path) -> None:
    router = make(K, V)
    play(router, 10)
    path = tmp_path / "state.npz"
    router.save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damaged in (b"", b"not a state", whole[: len(whole) // 2], whole[:-30], bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises(StateError):
            type(router).load(path)
    with pytest.raises(StateError):
        type(router).load(tmp_path / "missing.npz")
    with pytest.raises(TanbrError):
        router.save(tmp_path / "state.npz" / "below-a-file")
    assert list(tmp_path.iterdir()) == [path]  # nothing half-written is left behind


def check_unseen_rewards_teach_nothing_wrong(make: Make, tmp_path: Path) -> None:
    router = make(K, V)
    router.tell(router.ask(EVEN), np.full(V, np.nan))
    play(router, 30, unseen=0.9)
    router.tell(router.ask(EVEN), [0.5, np.nan, 0.2, np.nan], [3, 0, 200, 0])


def check_extremes_raise_no_warning(make: Make, tmp_path: Path) -> None:
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for experts, tasks in ((2, 1), (2, 3), (40, 2)):
            router = make(experts, tasks)
            for slot in range(40):
                decision = router.ask(np.eye(tasks)[slot % tasks])
                router.tell(decision, np.full(tasks, float(slot % 2)), np.full(tasks, 10.0 ** (slot % 9 - 2)))


def check_tree_is_well_formed(make: Make, tmp_path: Path) -> None:
    router = make(K, V)
    play(router, 60)
    tree = router.tree
    assert tree.parent[0] == -1
    assert (tree.parent[1:] >= 0).all()
    assert (tree.parent[1:] < np.arange(1, len(tree))).all()
    assert np.array_equal(tree.depth[1:], tree.depth[tree.parent[1:]] + 1)
    assert np.allclose(tree.blend[tree.active].sum(axis=1), 1.0)
    assert not tree.leaf[tree.parent[1:]].any()
    assert tree.blend.shape == (len(tree), K)
    assert tree.value.shape == (len(tree), V)
    assert len(set(tree.node.tolist())) == len(tree)
    node = router.explain(router.ask(EVEN)).node
    assert node == -1 or node in tree.node


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


def check_learns(make: Make, *, slots: int, at_least: float) -> None:
    """The mean toy reward of the last quarter must beat a random router's by `at_least`."""
    blends = play(make(K, V), slots)
    random = np.random.default_rng(0).dirichlet(np.ones(K), size=slots)
    reached = np.mean([toy_reward(x)[0] for x in blends[-slots // 4 :]])
    assert reached > np.mean([toy_reward(x)[0] for x in random]) + at_least
