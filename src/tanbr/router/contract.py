"""What every router must do, one function each: `check_router(MyRouter)` holds one to the contract that ours keep.

Each check takes a way to make a router, `make(experts, tasks, seed=…, max_active=…)`, and raises `AssertionError` with
a sentence where the router does not keep the contract. A router needs `ask` and `tell`; the rest (`save` and `load`,
`decline`, `fork`, `warm_start`, `explain`, `tree`, panels) is checked where it is there. The smallest router is in
`tanbr.router.own`: its `ask` gives a plain blend, and it is checked in the shell in which it will run.
"""

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tanbr.errors import DecisionError, InputError
from tanbr.router.own import OwnRouter, built
from tanbr.router.shell import RouterState
from tanbr.state import to_arrays
from tanbr.types import Decision, FloatArray

Make: TypeAlias = Callable[..., Any]  # make(experts, tasks, *, seed, max_active), the last two left out at times
K, V = 5, 4  # the toy world: five experts, four tasks
EVEN = np.full(V, 1 / V)


def toy_reward(blend: FloatArray) -> FloatArray:
    """Smooth, and best for every task at three parts of expert 0 and one of expert 1: (V,)."""
    target = np.zeros(len(blend))
    target[:2] = 0.75, 0.25
    return np.full(V, 0.1) + 0.8 * np.exp(-2.0 * ((blend - target) ** 2).sum())


def play(router: Any, slots: int, *, seed: int = 0, unseen: float = 0.0, panels: bool = False) -> FloatArray:
    """Ask and tell for some slots with random mixes, panels of one to three models in turn; all blends (n, K)."""
    rng = np.random.default_rng(seed)
    blends: list[FloatArray] = []
    for slot in range(slots):
        mix = rng.dirichlet(np.ones(V))
        decision = router.ask(mix, models=1 + slot % 3) if panels else router.ask(mix)
        rewards = np.clip([toy_reward(x) + 0.02 * rng.normal(size=V) for x in decision.blends], 0, 1)
        rewards[rng.random(rewards.shape) < unseen] = np.nan
        router.tell(decision, rewards if panels else rewards[0])
        blends += list(decision.blends)
    return np.array(blends)


def check_router(make: Make) -> None:
    """Run every check."""
    whole = isinstance(built(make, K, V).ask(EVEN), Decision)
    for check in CHECKS:
        check(make if whole else partial(OwnRouter, make))


def check_learns(make: Make, *, slots: int, at_least: float) -> None:
    """The mean toy reward of the last quarter must beat a random router's by `at_least`."""
    blends = play(make(K, V), slots)
    random = np.random.default_rng(0).dirichlet(np.ones(K), size=slots)
    reached, drawn = (float(np.mean([toy_reward(x)[0] for x in some])) for some in (blends[-slots // 4 :], random))
    _hold(reached > drawn + at_least, f"{reached:.3f} in the last quarter, a random router has {drawn:.3f}")


def same_seed_same_choices(make: Make) -> None:
    """Two routers of one seed choose alike."""
    blends = [play(make(K, V, seed=3), 40) for _ in range(2)]
    _hold(np.array_equal(blends[0], blends[1]), "two routers of the same seed chose different blends")


def blends_are_feasible(make: Make) -> None:
    """Every blend lies on the simplex with at most B experts."""
    for most in (1, 2, K):
        _hold_feasible(play(make(K, V, max_active=most), 30, unseen=0.3), most)


def decisions_stand_until_they_are_told(make: Make) -> None:
    """A decision is its own, whatever happens to the arrays it came from; rewards may come late and in any order."""
    router, mix = make(K, V), EVEN.copy()
    decisions = [router.ask(mix) for _ in range(8)]
    mix[0] = 9.0
    _hold(decisions[0].task_mix[0] == EVEN[0], "a decision's mix changes with the array it was asked with")
    _hold(not decisions[0].blend.flags.writeable, "a decision's blend can be written to")
    _hold(len({decision.id for decision in decisions}) == 8, "two decisions have the same id")
    if hasattr(router, "open"):
        _hold([d.id for d in router.open] == [d.id for d in decisions], "open decisions are not those asked, in order")
    for decision in reversed(decisions):
        router.tell(decision.id, toy_reward(decision.blend))
    _hold(getattr(router, "open", ()) == (), "a told decision is still open")


def bad_input_changes_nothing(make: Make) -> None:
    """What is refused leaves no trace."""
    router, twin = make(K, V, seed=2), make(K, V, seed=2)
    told = router.ask(EVEN), twin.ask(EVEN)
    for one, decision in zip((router, twin), told, strict=True):
        one.tell(decision, toy_reward(decision.blend))
        play(one, 12)
    panels = _fills_panels(make)
    for models in (1, 2) if panels else (1,):
        held = [one.ask(EVEN, models=models) for one in (router, twin)]
        _refuse_all(router, held[0], told[0])
        for one, decision in zip((router, twin), held, strict=True):
            one.tell(decision, _alike(0.5, models))
    none: list[Any] = [0, -1, K + 1, 1.5, "2", True]
    for odd in none if panels else ():
        _refuses(InputError, f"a panel of {odd!r} models", router.ask, EVEN, models=odd)
    after = [play(one, 30, seed=5, panels=panels) for one in (router, twin)]
    _hold(np.array_equal(after[0], after[1]), "something that was refused changed later choices")


def _refuse_all(router: Any, held: Decision, told: Decision) -> None:
    """Hand over all that makes no sense while a decision is open and another one was told."""
    good, models = _alike(0.5, len(held.blends)), len(held.blends)
    mixes: list[Any] = [
        np.full(V, 0.3), np.ones(V + 1) / (V + 1), [np.nan, 0.5, 0.25, 0.25], [-0.5, 0.5, 0.5, 0.5],
        np.zeros(V), [np.inf, 0, 0, 0], "mix", None, EVEN[None],
    ]  # fmt: skip
    for mix in mixes:
        _refuses(InputError, f"the task mix {mix!r}", router.ask, mix)
    rewards: list[Any] = [
        good[..., :-1], good + 0.6, good - 0.6, good + np.inf, "reward", None,
        np.ones((models + 1, V)), [[0.5] * V, [0.5]],
    ]  # fmt: skip
    for reward in rewards:
        _refuses(InputError, f"the reward {reward!r}", router.tell, held, reward)
    for counts in (0.0 * good, -good, np.nan * good, good[..., :-1]):
        _refuses(InputError, f"the counts {counts!r}", router.tell, held, good, counts)
    foreign = Decision(held.id, held.task_mix, np.eye(K)[0] * 0.5 + 0.5 / K)
    odd: list[Any] = [told, told.id, 10**9, -1, "1", None, True, foreign]
    for decision in odd:
        _refuses(DecisionError, f"the decision {decision!r}", router.tell, decision, good)
    one = EVEN[None]
    tables: list[Any] = [(np.eye(K), np.zeros((2, V))), (np.ones((1, K)), one), ("a", "b"), (EVEN, EVEN)]
    for blends, table in tables if hasattr(router, "warm_start") else ():
        _refuses(InputError, f"a warm start with {blends!r}", router.warm_start, blends, table)


def bad_sizes_are_refused(make: Make) -> None:
    """Sizes that make no router are an `InputError`."""
    sizes: list[tuple[Any, Any, dict[str, Any]]] = [
        (1, V, {}), (0, V, {}), (2.5, V, {}), ("5", V, {}), (K, 0, {}), (K, -1, {}), (K, True, {}),
        (K, V, {"max_active": 0}), (K, V, {"max_active": K + 1}), (K, V, {"max_active": 1.5}),
    ]  # fmt: skip
    for experts, tasks, options in sizes:
        _refuses(InputError, f"{experts!r} experts, {tasks!r} tasks, {options}", make, experts, tasks, **options)


def declined_decisions_leave_no_trace(make: Make) -> None:
    """A decision that is declined, or told no reward at all, changes nothing but the next id and the random stream."""
    router, panels = make(K, V, seed=4), (1, 2) if _fills_panels(make) else (1,)
    for slots in (0, 24):
        play(router, slots)
        held = router.ask(EVEN)  # stays open
        before = _shown(router)
        for mix in (*np.eye(V), EVEN):
            for models in panels:
                router.tell(router.ask(mix, models=models), _alike(np.nan, models))
                if hasattr(router, "decline"):
                    router.decline(router.ask(mix, models=models))
        after = _shown(router)
        odd = [name for name in before if before[name] != after.get(name)]
        _hold(not odd and len(before) == len(after), f"a declined decision changed {', '.join(odd)}")
        router.tell(held, toy_reward(held.blend))


def unseen_tasks_teach_nothing(make: Make) -> None:
    """An unseen task is not taken for a reward of 0 or 1."""
    if not (hasattr(make(K, V), "warm_start") and hasattr(make(K, V), "explain")):
        return
    blends = np.tile(np.vstack([np.eye(K), np.full(K, 1 / K)]), (8, 1))
    expected = {}
    for told in (0.0, np.nan, 1.0):
        one = make(K, V, seed=4)
        play(one, 12)
        rewards = np.tile([0.5, told, 0.5, 0.5], (len(blends), 1))
        one.warm_start(blends, rewards, np.where(np.isnan(rewards), 0.0, 200.0))
        expected[told] = one.explain(one.ask(np.eye(V)[1])).mean
    worst, unseen, best = expected.values()
    learns = abs(worst - best) > 0  # NaN where a router predicts nothing
    _hold(not learns or unseen not in (worst, best), f"an unseen task was taken for a reward of {unseen == best:d}")


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
    if not hasattr(router, "tree"):
        return
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


def resumes_bit_for_bit(make: Make) -> None:
    """A loaded router, and a fork, go on exactly as the saved one does, open decisions and panels included."""
    router = make(K, V, seed=1)
    saves = hasattr(router, "save") and not isinstance(router, OwnRouter)
    ways = [_reloaded] * saves + [lambda one: one.fork()] * hasattr(router, "fork")
    if not ways:
        return
    _hold(ways[0](router).open == (), "a router that was never asked is loaded anew")
    play(router, 45, unseen=0.2)
    panels = _fills_panels(make)
    held = [router.ask(EVEN, models=models) for models in ((1, 3) if panels else (1, 1))]
    others, after = [way(router) for way in ways], []
    for other in others:
        _hold([d.id for d in other.open] == [d.id for d in held], "a copy does not know the decisions that are open")
        _hold(repr(router.explain(held[1])) == repr(other.explain(held[1].id)), "a copy explains a decision otherwise")
    for one in (router, *others):
        for decision in reversed(held):
            one.tell(decision.id, [toy_reward(x) for x in decision.blends])
        after.append(play(one, 45, seed=7, unseen=0.2, panels=panels))
        _hold(np.array_equal(after[0], after[-1]), "a copy chooses otherwise than the router it was made of")
        _hold(np.array_equal(router.tree.blend, one.tree.blend), "a copy has another tree")


def panels_are_feasible_and_assign(make: Make) -> None:
    """G blends on the simplex; each request goes to one of them, by its posterior alone; G may change."""
    for most in (1, 2, K) if _fills_panels(make) else ():
        router, rng = make(K, V, max_active=most), np.random.default_rng(0)
        for models in (2, K, 3, 2, 1, 4):
            misread = rng.dirichlet(np.ones(V), V) if models == 3 else None
            panel = router.ask(rng.dirichlet(np.ones(V)), models=models, confusion=misread)
            blends, posteriors = panel.blends, rng.dirichlet(np.full(V, 0.3), 12)
            _hold(blends.shape == (models, K), f"a panel of {models} has blends of shape {blends.shape}")
            _hold_feasible(blends, most)
            given = panel.assign(posteriors)
            _hold(bool(((given >= 0) & (given < models)).all()), "a request went to a model that there is not")
            alone = np.concatenate([panel.assign(row) for row in posteriors])
            _hold(np.array_equal(given, alone), "a request's model depends on other requests")
            router.tell(panel, np.tile(toy_reward(blends[0]), (models, 1)))


CHECKS: tuple[Callable[[Make], None], ...] = (
    same_seed_same_choices, blends_are_feasible, decisions_stand_until_they_are_told, bad_input_changes_nothing,
    bad_sizes_are_refused, declined_decisions_leave_no_trace, unseen_tasks_teach_nothing, extremes_raise_no_warning,
    tree_is_well_formed, resumes_bit_for_bit, panels_are_feasible_and_assign,
)  # fmt: skip


def _fills_panels(make: Make) -> bool:
    try:
        make(K, V).ask(EVEN, models=2)
    except (InputError, TypeError):  # it chooses one blend at a time
        return False
    return True


def _alike(reward: float, models: int) -> FloatArray:
    """The same reward for all: (V,) of one model, (G, V) of more."""
    return np.full((models, V) if models > 1 else V, reward)


def _shown(router: Any) -> dict[str, object]:
    """All that can be seen of a router, but for ids and the random stream."""
    found: dict[str, object] = {"open": [decision.id for decision in getattr(router, "open", ())]}
    if hasattr(router, "tree"):
        found["tree"] = [array.tobytes() for array in vars(router.tree).values()]
    if isinstance(getattr(router, "_state", None), RouterState):
        found |= {name: array.tobytes() for name, array in to_arrays(router._state.known).items()}
    return found


def _reloaded(router: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        router.save(Path(folder) / "state.npz")
        return type(router).load(Path(folder) / "state.npz")


def _hold_feasible(blends: FloatArray, most: int) -> None:
    _hold(bool((np.abs(blends.sum(axis=1) - 1.0) <= K * 1e-9).all()), "a blend does not sum to 1")
    _hold(bool((blends >= 0).all()), "a blend has a negative weight")
    _hold(bool((np.count_nonzero(blends, axis=1) <= most).all()), f"a blend has more than {most} experts")


def _hold(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)


def _refuses(error: type[Exception], what: str, call: Callable[..., object], *args: Any, **options: Any) -> None:
    try:
        call(*args, **options)
    except error:
        return
    raise AssertionError(f"{what} must be refused with {error.__name__}")
