"""What every router must do, one function each: `check_router(MyRouter)` holds one to the contract that ours keep.

Each check takes a way to make a router, `make(experts, tasks, seed=…, max_active=…)`, and raises `AssertionError` with
a sentence where the router does not keep the contract. A class with `ask` and `tell` alone (`tanbr.router.own`) is
checked in the shell in which it will run. What the shell does for all routers (ids, open decisions, bad input) is not
checked again.
"""

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tanbr.errors import InputError
from tanbr.router.own import OwnRouter, built
from tanbr.router.shell import AskTell
from tanbr.state import to_arrays
from tanbr.types import FloatArray

Make: TypeAlias = Callable[..., AskTell]  # make(experts, tasks, *, seed, max_active), the last two left out at times
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


def check_router(make: Callable[..., Any]) -> None:
    """Run every check."""
    whole = isinstance(built(make, K, V), AskTell)
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


def rewards_may_come_late_and_in_any_order(make: Make) -> None:
    """Decisions may be told by their ids, the newest first."""
    router = make(K, V)
    decisions = [router.ask(EVEN) for _ in range(8)]
    _hold(len({decision.id for decision in decisions}) == 8, "two decisions have the same id")
    for decision in reversed(decisions):
        router.tell(decision.id, toy_reward(decision.blend))
    _hold(router.open == (), "a told decision is still open")


def declined_decisions_leave_no_trace(make: Make) -> None:
    """A decision that is declined, or told no reward at all, changes nothing but the next id and the random stream."""
    router, panels = make(K, V, seed=4), (1, 2) if _fills_panels(make) else (1,)
    for slots in (0, 24):
        play(router, slots)
        held = router.ask(EVEN)  # stays open
        before = _shown(router)
        for mix in (*np.eye(V), EVEN):
            for models in panels:
                router.tell(router.ask(mix, models=models), np.full((models, V), np.nan))
                router.decline(router.ask(mix, models=models))
        odd = [name for name, value in _shown(router).items() if before.get(name) != value]
        _hold(not odd, f"a declined decision changed {', '.join(odd)}")
        router.tell(held, toy_reward(held.blend))


def unseen_tasks_teach_nothing(make: Make) -> None:
    """An unseen task is not taken for a reward of 0 or 1."""
    blends = np.tile(np.vstack([np.eye(K), np.full(K, 1 / K)]), (8, 1))
    expected = {}
    for told in (0.0, np.nan, 1.0):
        one = make(K, V, seed=4)
        play(one, 12)
        rewards = np.tile([0.5, told, 0.5, 0.5], (len(blends), 1))
        one.warm_start(blends, rewards, np.where(np.isnan(rewards), 0.0, 200.0))
        expected[told] = one.ask(np.eye(V)[1]).why.mean
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


def resumes_bit_for_bit(make: Make) -> None:
    """A loaded router, and a fork, go on exactly as the saved one does, open decisions and panels included."""
    router = make(K, V, seed=1)
    ways: tuple[Callable[[AskTell], AskTell], ...] = (
        (_forked,) if isinstance(router, OwnRouter) else (_reloaded, _forked)
    )
    _hold(ways[0](router).open == (), "a router that was never asked is loaded anew")
    play(router, 45, unseen=0.2)
    panels = _fills_panels(make)
    held = [router.ask(EVEN, models=models) for models in ((1, 3) if panels else (1, 1))]
    others, after = [way(router) for way in ways], []
    for other in others:
        _hold([d.id for d in other.open] == [d.id for d in held], "a copy does not know the decisions that are open")
        _hold(repr(held[1].why) == repr(other.open[1].why), "a copy explains a decision otherwise")
    for one in (router, *others):
        for decision in reversed(held):
            one.tell(decision.id, [toy_reward(x) for x in decision.blends])
        after.append(play(one, 45, seed=7, unseen=0.2, panels=panels))
        _hold(np.array_equal(after[0], after[-1]), "a copy chooses otherwise than the router it was made of")
        _hold(np.array_equal(router.expected, one.expected, equal_nan=True), "a copy expects other rewards")


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
    same_seed_same_choices, blends_are_feasible, rewards_may_come_late_and_in_any_order,
    declined_decisions_leave_no_trace, unseen_tasks_teach_nothing, extremes_raise_no_warning, resumes_bit_for_bit,
    panels_are_feasible_and_assign,
)  # fmt: skip


def _fills_panels(make: Make) -> bool:
    try:
        make(K, V).ask(EVEN, models=2)
    except InputError:  # it chooses one blend at a time
        return False
    return True


def _shown(router: AskTell) -> dict[str, object]:
    """All that can be seen of a router, but for ids and the random stream."""
    seen: dict[str, object] = {"open": [decision.id for decision in router.open]}
    return seen | {name: array.tobytes() for name, array in to_arrays(router.known).items()}


def _forked(router: AskTell) -> AskTell:
    return router.fork()


def _reloaded(router: AskTell) -> AskTell:
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
