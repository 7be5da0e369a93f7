"""What every router must do, one function each.

Each check takes a way to make a router, `make(experts, tasks, seed=…, max_active=…)`, and raises `AssertionError` with
a sentence where the router does not keep the contract.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.errors import DecisionError, InputError, StateError, TanbrError
from tanbr.state import read_state
from tanbr.testing.toy import EVEN, K, Make, V, play, play_panels, toy_reward
from tanbr.types import Decision, Router, Terms


def check_router(make: Make, *, without: Iterable[str] = ()) -> None:
    """Run every check; `without` names some to leave out."""
    for check in CHECKS:
        if check.__name__ not in without:
            check(make)


def same_seed_same_choices(make: Make) -> None:
    """Two routers of one seed choose alike."""
    blends = [play(make(K, V, seed=3), 40) for _ in range(2)]
    _hold(np.array_equal(blends[0], blends[1]), "two routers of the same seed chose different blends")


def blends_are_feasible(make: Make) -> None:
    """Every blend lies on the simplex with at most B experts."""
    for most in (1, 2, K):
        blends = play(make(K, V, max_active=most), 30, unseen=0.3)
        _hold(bool((np.abs(blends.sum(axis=1) - 1.0) <= K * 1e-9).all()), "a blend does not sum to 1")
        _hold(bool((blends >= 0).all()), "a blend has a negative weight")
        _hold(bool((np.count_nonzero(blends, axis=1) <= most).all()), f"a blend has more than {most} experts")


def decisions_cannot_be_changed(make: Make) -> None:
    """A decision is its own, whatever happens to the arrays it came from."""
    mix = EVEN.copy()
    decision = make(K, V).ask(mix)
    mix[0] = 9.0
    _hold(decision.task_mix[0] == EVEN[0], "a decision's mix changes with the array it was asked with")
    _hold(not decision.blend.flags.writeable, "a decision's blend can be written to")


def resumes_bit_for_bit(make: Make) -> None:
    """A loaded router goes on exactly as the saved one does."""
    router = make(K, V, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        router.save(Path(folder) / "state.npz")
        _hold(type(router).load(Path(folder) / "state.npz").open == (), "a router that was never asked is loaded anew")
    play(router, 45, unseen=0.2)
    held = router.ask(EVEN)
    with tempfile.TemporaryDirectory() as folder:
        router.save(Path(folder) / "state.npz")
        resumed = type(router).load(Path(folder) / "state.npz")
    _hold([d.id for d in resumed.open] == [held.id], "a loaded router does not know the decision that was open")
    _hold(_alike(router.explain(held), resumed.explain(held.id)), "a loaded router explains a decision otherwise")
    for one in (router, resumed):
        one.tell(held, toy_reward(held.blend))
    after = [play(one, 100, seed=7, unseen=0.2) for one in (router, resumed)]
    _hold(np.array_equal(after[0], after[1]), "a loaded router chooses otherwise than the saved one")
    _hold(np.array_equal(router.tree.blend, resumed.tree.blend), "a loaded router has another tree")


def late_and_out_of_order(make: Make) -> None:
    """Rewards may come late and in any order."""
    router = make(K, V)
    decisions = [router.ask(EVEN) for _ in range(8)]
    _hold(len({decision.id for decision in decisions}) == 8, "two decisions have the same id")
    _hold([d.id for d in router.open] == [d.id for d in decisions], "open decisions are not those asked, in order")
    for decision in reversed(decisions):
        router.tell(decision.id, toy_reward(decision.blend))
    _hold(router.open == (), "a told decision is still open")


def bad_input_changes_nothing(make: Make) -> None:
    """What is refused leaves no trace."""
    router, twin = make(K, V, seed=2), make(K, V, seed=2)
    told = router.ask(EVEN), twin.ask(EVEN)
    for one, decision in zip((router, twin), told, strict=True):
        one.tell(decision, toy_reward(decision.blend))
        play(one, 12)
    held, same = router.ask(EVEN), twin.ask(EVEN)
    good = np.full(V, 0.5)
    bad_mixes: list[Any] = [
        np.full(V, 0.3), np.ones(V + 1) / (V + 1), [np.nan, 0.5, 0.25, 0.25], [-0.5, 0.5, 0.5, 0.5],
        np.zeros(V), [np.inf, 0, 0, 0], "mix", None, EVEN[None],
    ]  # fmt: skip
    for mix in bad_mixes:
        _refuses(InputError, f"the task mix {mix!r}", router.ask, mix)
    bad_rewards: list[Any] = [good[:-1], good + 0.6, good - 0.6, [np.inf, 0, 0, 0], "reward", None, good[None]]
    for reward in bad_rewards:
        _refuses(InputError, f"the reward {reward!r}", router.tell, held, reward)
    for counts in (np.zeros(V), -np.ones(V), np.full(V, np.nan), np.ones(V - 1)):
        _refuses(InputError, f"the counts {counts!r}", router.tell, held, good, counts)
    foreign = Decision(held.id, held.task_mix, np.eye(K)[0] * 0.5 + 0.5 / K)
    odd: list[Any] = [told[0], told[0].id, 10**9, -1, "1", None, True, foreign]
    for decision in odd:
        _refuses(DecisionError, f"the decision {decision!r}", router.tell, decision, good)
    tables: list[Any] = [(np.eye(K), np.zeros((2, V))), (np.ones((1, K)), good[None]), ("a", "b"), (good, good)]
    for blends, rewards in tables:
        _refuses(InputError, f"a warm start with {blends!r}", router.warm_start, blends, rewards)
    router.tell(held, good)
    twin.tell(same, good)
    after = [play(one, 30, seed=5) for one in (router, twin)]
    _hold(np.array_equal(after[0], after[1]), "something that was refused changed later choices")


def bad_sizes_are_refused(make: Make) -> None:
    """Sizes that make no router are an `InputError`."""
    sizes: list[tuple[Any, Any, dict[str, Any]]] = [
        (1, V, {}), (0, V, {}), (2.5, V, {}), ("5", V, {}), (K, 0, {}), (K, -1, {}), (K, True, {}),
        (K, V, {"max_active": 0}), (K, V, {"max_active": K + 1}), (K, V, {"max_active": 1.5}),
    ]  # fmt: skip
    for experts, tasks, options in sizes:
        _refuses(InputError, f"{experts!r} experts, {tasks!r} tasks, {options}", make, experts, tasks, **options)


def bad_states_are_refused(make: Make) -> None:
    """A damaged state is a `StateError`, and nothing half-written is left behind."""
    router = make(K, V)
    play(router, 10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        router.save(path)
        whole = path.read_bytes()
        flipped = bytearray(whole)
        middle = slice(len(whole) // 2, len(whole) // 2 + 200)
        flipped[middle] = bytes(byte ^ 0xFF for byte in whole[middle])
        for damaged in (b"", b"not a state", whole[: len(whole) // 2], whole[:-30], bytes(flipped)):
            path.write_bytes(damaged)
            _refuses(StateError, f"a damaged state of {len(damaged)} bytes", type(router).load, path)
        _refuses(StateError, "a state that is not there", type(router).load, path.with_name("missing.npz"))
        _refuses(TanbrError, "to save below a file", router.save, path / "below-a-file")
        _hold(list(path.parent.iterdir()) == [path], "something half-written is left behind")


def unseen_rewards_teach_nothing(make: Make) -> None:
    """Slots without rewards leave what is known as it was, and an unseen task is not taken for a reward of 0 or 1."""
    router = make(K, V, seed=4)
    play(router, 12)
    before = router.tree
    for _ in range(3):
        router.tell(router.ask(EVEN), np.full(V, np.nan))
    after = router.tree
    _hold(
        np.array_equal(before.value, after.value, equal_nan=True) and np.array_equal(before.visits, after.visits),
        "a slot without any reward changed what is known",
    )
    blends = np.tile(np.vstack([np.eye(K), np.full(K, 1 / K)]), (8, 1))
    expected = {}
    for told in (0.0, np.nan, 1.0):
        one = make(K, V, seed=4)
        play(one, 12)
        rewards = np.tile([0.5, told, 0.5, 0.5], (len(blends), 1))
        one.warm_start(blends, rewards, np.where(np.isnan(rewards), 0.0, 200.0))
        expected[told] = one.explain(one.ask(np.eye(V)[1])).mean
    worst, unseen, best = expected.values()
    learns = worst != best and not np.isnan([worst, best]).any()
    _hold(not learns or unseen not in (worst, best), f"an unseen task was taken for a reward of {unseen == best:d}")


def declined_decisions_leave_no_trace(make: Make) -> None:
    """A decision that is told NaN alone was not served: what is saved is as before, but for ids and the random stream.

    The stream moves on, so that a router which draws its blends does not offer the same one again. A router whose
    states are not written by `tanbr.state` leaves this check out.
    """
    router = make(K, V, seed=6)
    for slots in (0, 24):
        play(router, slots)
        play_panels(router, slots // 4)
        router.ask(EVEN, models=2)  # stays open
        before = _saved(router)
        for mix in (*np.eye(V), EVEN):
            router.tell(router.ask(mix), np.full(V, np.nan))
            router.tell(router.ask(mix, models=2), np.full((2, V), np.nan))
        after = _saved(router)
        odd = [name for name in before | after if before.get(name) != after.get(name)]
        _hold(not odd, f"a declined decision changed {', '.join(odd)}")


def extremes_raise_no_warning(make: Make) -> None:
    """Few tasks, many experts, rewards of 0 and 1 and counts from 0.01 to a million: no warning, no overflow."""
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for experts, tasks in ((2, 1), (2, 3), (40, 2)):
            router = make(experts, tasks)
            for slot in range(40):
                decision = router.ask(np.eye(tasks)[slot % tasks])
                router.tell(decision, np.full(tasks, float(slot % 2)), np.full(tasks, 10.0 ** (slot % 9 - 2)))
                _hold(bool(np.isfinite(decision.blend).all()), f"slot {slot} of {experts} experts chose NaN")


def tree_is_well_formed(make: Make) -> None:
    """Parents come before children, and an explanation names a node of the tree or none."""
    router = make(K, V)
    play(router, 60)
    tree = router.tree
    size = len(tree)
    _hold(tree.parent[0] == -1, "row 0 must be the root")
    _hold(bool(((tree.parent[1:] >= 0) & (tree.parent[1:] < np.arange(1, size))).all()), "a child before its parent")
    _hold(np.array_equal(tree.depth[1:], tree.depth[tree.parent[1:]] + 1), "a child is one deeper than its parent")
    total = tree.blend[tree.active].sum(axis=1)
    _hold(bool((np.abs(total - 1.0) <= K * 1e-9).all()), "the blend of an active node must sum to 1")
    _hold(not tree.leaf[tree.parent[1:]].any(), "a node with children is no leaf")
    _hold(tree.blend.shape == (size, K) and tree.value.shape == (size, V), "blend must be (n, K), value (n, V)")
    _hold(len(set(tree.node.tolist())) == size, "two nodes have the same name")
    node = router.explain(router.ask(EVEN)).node
    _hold(node == -1 or node in tree.node, "the explanation names a node that the tree does not have")


def panel_of_one_is_the_single_blend(make: Make) -> None:
    """A panel of G = 1 chooses and learns as a single blend does, bit for bit."""
    single, panel = make(K, V, seed=5), make(K, V, seed=5)
    rng = np.random.default_rng(0)
    for _ in range(25):
        mix, reward = rng.dirichlet(np.ones(V)), rng.random(V)
        one, many = single.ask(mix), panel.ask(mix, models=1)
        _hold(np.array_equal(one.blend[None], many.blends), "a panel of one is not the single blend")
        _hold(not many.assign(rng.dirichlet(np.ones(V), 9)).any(), "a panel of one has only model 0")
        single.tell(one, reward)
        panel.tell(many, reward[None])


def panels_are_feasible_and_assign(make: Make) -> None:
    """G blends on the simplex; each request goes to one of them, by its posterior alone; G may change."""
    for most in (1, 2, K):
        router, rng = make(K, V, max_active=most), np.random.default_rng(0)
        for models in (2, K, 3, 2, 1, 4):
            misread = rng.dirichlet(np.ones(V), V) if models == 3 else None
            panel = router.ask(rng.dirichlet(np.ones(V)), models=models, confusion=misread)
            blends, posteriors = panel.blends, rng.dirichlet(np.full(V, 0.3), 12)
            _hold(blends.shape == (models, K), f"a panel of {models} has blends of shape {blends.shape}")
            _hold(bool((np.abs(blends.sum(axis=1) - 1.0) <= K * 1e-9).all() and (blends >= 0).all()), "no blend")
            _hold(bool((np.count_nonzero(blends, axis=1) <= most).all()), f"a blend has more than {most} experts")
            given = panel.assign(posteriors)
            _hold(bool(((given >= 0) & (given < models)).all()), "a request went to a model that there is not")
            alone = np.concatenate([panel.assign(row) for row in posteriors])
            _hold(np.array_equal(given, alone), "a request's model depends on other requests")
            _hold(len(router.explain(panel)) == models, "a panel must be explained blend by blend")
            router.tell(panel, np.tile(toy_reward(blends[0]), (models, 1)))


def panels_resume_bit_for_bit(make: Make) -> None:
    """Open panels, late rewards and single blends between them survive save and load."""
    router = make(K, V, seed=1)
    play_panels(router, 12)
    held: list[Any] = [router.ask(EVEN, models=3), router.ask(EVEN), router.ask(EVEN, models=2)]
    with tempfile.TemporaryDirectory() as folder:
        router.save(Path(folder) / "state.npz")
        resumed = type(router).load(Path(folder) / "state.npz")
    _hold([d.id for d in resumed.open] == [d.id for d in held], "a loaded router does not know the open panels")
    for one in (router, resumed):
        one.tell(held[2].id, np.full((2, V), 0.4))
        one.tell(held[0], np.full((3, V), 0.6), np.full((3, V), 5.0))
        one.tell(held[1], np.full(V, 0.5))
    after = [play_panels(one, 20, seed=7) for one in (router, resumed)]
    _hold(np.array_equal(after[0], after[1]), "a loaded router chooses other panels than the saved one")


def bad_panels_change_nothing(make: Make) -> None:
    """What is refused of a panel leaves no trace."""
    router, twin = make(K, V, seed=2), make(K, V, seed=2)
    held, same = (one.ask(EVEN, models=2) for one in (router, twin))
    for models in (0, -1, K + 1, 1.5, "2", True):
        _refuses(InputError, f"a panel of {models!r} models", router.ask, EVEN, models=models)
    good = np.full((2, V), 0.5)
    bad: list[Any] = [good[0], good[:1], good + 0.6, good.T, "reward", None]
    for reward in bad:
        _refuses(InputError, f"the rewards {reward!r}", router.tell, held, reward)
    _refuses(InputError, "counts of one model", router.tell, held, good, np.ones(V))
    _refuses(InputError, "posteriors of other tasks", held.assign, np.ones((3, V + 1)))
    _refuses(DecisionError, "a panel as a single blend", router.tell, Decision(held.id, EVEN, held.blends[0]), good[0])
    for one, panel in ((router, held), (twin, same)):
        one.tell(panel, good)
        _refuses(DecisionError, "a panel that was told already", one.tell, panel, good)
    after = [play_panels(one, 10, seed=5) for one in (router, twin)]
    _hold(np.array_equal(after[0], after[1]), "something that was refused changed later panels")


CHECKS: tuple[Callable[[Make], None], ...] = (
    same_seed_same_choices, blends_are_feasible, decisions_cannot_be_changed, resumes_bit_for_bit,
    late_and_out_of_order, bad_input_changes_nothing, bad_sizes_are_refused, bad_states_are_refused,
    unseen_rewards_teach_nothing, declined_decisions_leave_no_trace, extremes_raise_no_warning, tree_is_well_formed,
    panel_of_one_is_the_single_blend, panels_are_feasible_and_assign, panels_resume_bit_for_bit,
    bad_panels_change_nothing,
)  # fmt: skip


def check_learns(make: Make, *, slots: int, at_least: float) -> None:
    """The mean toy reward of the last quarter must beat a random router's by `at_least`."""
    blends = play(make(K, V), slots)
    random = np.random.default_rng(0).dirichlet(np.ones(K), size=slots)
    reached, drawn = (float(np.mean([toy_reward(x)[0] for x in some])) for some in (blends[-slots // 4 :], random))
    _hold(reached > drawn + at_least, f"{reached:.3f} in the last quarter, a random router has {drawn:.3f}")


def _saved(router: Router) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        router.save(Path(folder) / "state.npz")
        header, arrays = read_state(Path(folder) / "state.npz")
    kept = {name: value for name, value in header.items() if name not in ("next_id", "random")}
    return kept | {name: (array.shape, array.tobytes()) for name, array in arrays.items()}


def _alike(one: Terms, other: Terms) -> bool:
    return repr(one) == repr(other)  # NaN is like NaN here


def _hold(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)


def _refuses(error: type[Exception], what: str, call: Callable[..., object], *args: Any, **options: Any) -> None:
    try:
        call(*args, **options)
    except error:
        return
    raise AssertionError(f"{what} must be refused with {error.__name__}")
