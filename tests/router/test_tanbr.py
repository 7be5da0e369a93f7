"""The shell: contract, what it refuses, states, forks, and what follows from settings."""

import functools
from pathlib import Path

import numpy as np
import pytest

from tanbr import state
from tanbr.errors import ConfigError, DecisionError, InputError, SettingsError, StateError
from tanbr.lab.rivals import RandomBlend
from tanbr.lab.settings import parse, with_options
from tanbr.router import Tanbr
from tanbr.router.config import MADE_WITH, DefaultModeConfig, RouterConfig
from tanbr.router.contract import CHECKS, EVEN, K, V, check_learns, play, toy_reward
from tanbr.router.simplex import MOST, Sizes, first_best, keep_largest
from tanbr.state import read_state, write_state
from tanbr.types import Decision

EXACT = RouterConfig.model_validate({"paper": {"confidence": "exact", "rho": 0.9, "layers": 3, "width": 16}})
THEORY = RouterConfig.model_validate({"paper": {"gamma": "theory", "learning_rate": 1e-3, "loss": "mean"}})


def taught(experts, tasks, **options):
    own = tuple(v % max(int(experts), 1) for v in range(int(tasks)))
    return Tanbr(experts, tasks, config=RouterConfig().of_requests(own), **options)


def even(experts, tasks, **options):
    return Tanbr(experts, tasks, config=RouterConfig().of_requests(), **options)


ROUTERS = {
    "default": Tanbr,
    "default, own experts known": taught,
    "default, around the even blend": even,
    "paper": functools.partial(Tanbr, mode="paper"),
    "paper, exact": functools.partial(Tanbr, mode="paper", config=EXACT),
    "paper, theory": functools.partial(Tanbr, mode="paper", config=THEORY),
}


@pytest.mark.parametrize("make", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_router(check, make):
    check(make)


WRONG = [  # what each of them may be is tried in test_types.py
    ("ask", np.full(V, 0.3)), ("ask", EVEN[None]), ("ask", "mix"), ("ask", None),
    ("tell", EVEN[:-1]), ("tell", EVEN + 0.9), ("tell", np.ones((2, V))), ("tell", [[0.5] * V, [0.5]]),
    ("tell", EVEN, 0 * EVEN), ("tell", EVEN, EVEN[:-1]),
    ("warm_start", np.eye(K), np.zeros((2, V))), ("warm_start", np.ones((1, K)), EVEN[None]), ("warm_start", "a", "b"),
]  # fmt: skip


def test_what_makes_no_sense_is_refused_and_changes_nothing():
    router, twin = Tanbr(K, V, seed=2), Tanbr(K, V, seed=2)
    play(router, 12)
    play(twin, 12)
    mix = EVEN.copy()
    told, held = (one.ask(mix) for one in (router, router))
    mix[0] = 9.0
    assert held.task_mix[0] == EVEN[0]
    assert not held.blend.flags.writeable
    assert [one.id for one in router.open] == [told.id, held.id]
    router.tell(told, EVEN)
    for method, *arguments in WRONG:
        with pytest.raises(InputError):
            getattr(router, method)(*[held] * (method == "tell"), *arguments)
    for models in (0, -1, K + 1, 1.5, "2", True):
        with pytest.raises(InputError):
            router.ask(EVEN, models=models)
    foreign = Decision(held.id, held.task_mix, np.eye(K)[0] * 0.5 + 0.5 / K)
    for decision in (told, told.id, 10**9, -1, "1", None, True, foreign):
        with pytest.raises(DecisionError):
            router.tell(decision, EVEN)
    router.tell(held, EVEN)
    for decision in [twin.ask(EVEN) for _ in range(2)]:
        twin.tell(decision, EVEN)
    assert np.array_equal(play(router, 30, panels=True), play(twin, 30, panels=True))


def test_it_learns_in_tens_of_slots_and_mode_paper_in_hundreds():
    check_learns(Tanbr, slots=40, at_least=0.25)
    config = RouterConfig.model_validate({"paper": {"rho": 0.9, "loss": "mean", "learning_rate": 0.01}})
    check_learns(functools.partial(Tanbr, mode="paper", config=config), slots=300, at_least=0.05)


def test_refuses_modes_settings_and_sizes_that_do_not_exist():
    with pytest.raises(InputError, match='"default" or "paper"'):
        Tanbr(4, 3, mode="fast")
    with pytest.raises(ConfigError, match="learning_rate"):
        Tanbr(4, 3, mode="paper", config={"paper": {"gamma": "theory", "learning_rate": 0.5}})
    with pytest.raises(ConfigError, match="did you mean 'beta'"):
        Tanbr(4, 3, config={"default": {"betas": 100}})
    with pytest.raises(InputError, match="seed"):
        Tanbr(4, 3, seed=-1)
    with pytest.raises(InputError, match="one blend at a time"):
        Tanbr(4, 3, mode="paper").ask([0.5, 0.3, 0.2], models=2)
    assert Sizes.check(8, np.int64(3)) == Sizes(8, 3, 8)
    odd = [(1, V), (0, V), (2.5, V), ("5", V), (K, 0), (K, -1), (K, True), (K, V, 0), (K, V, K + 1), (K, V, 1.5)]
    for sizes in odd:
        with pytest.raises(InputError, match="whole number"):
            Sizes.check(*sizes)
    with pytest.raises(InputError, match=r"experts must be a whole number from 2 to 4096 \(got 4097\)"):
        Sizes.check(MOST + 1, 3)


def test_what_nobody_has_set_follows_from_what_is_known_and_what_the_user_has_set_stays():
    known = RouterConfig().of_requests((1, 0)).default
    assert (known.baseline, known.own_experts) == ("proportional", (1, 0))
    assert RouterConfig().of_requests().default.baseline == "even"
    config = with_options(parse({"router": {"default": {"baseline": "even", "beta": 3.0}}}), serve={"seed": 1})
    chosen = config.router.of_requests((1, 0)).default
    assert (chosen.baseline, chosen.beta, chosen.own_experts) == ("even", 3.0, ())


def test_what_is_equal_but_for_rounding_goes_by_order():
    assert first_best(np.array([0.1, 0.7, 0.7 + 1e-15, 0.3])) == 1
    assert first_best(np.array([0.1, 0.7, 0.7 + 1e-6])) == 2
    assert first_best(np.array([1e6, 1e6 + 1e-7])) == 0  # rounding grows with the size of the bound
    assert first_best(np.array([-np.inf, -3.0])) == 1
    points = np.random.default_rng(0).dirichlet(np.ones(6), 20)
    for count in range(1, 7):
        kept = keep_largest(points, count)
        assert np.allclose(kept.sum(axis=1), 1.0)
        for before, after in zip(points, kept, strict=True):
            assert np.count_nonzero(after) == count
            assert before[after > 0].min() >= before[after == 0].max(initial=0.0)
    assert keep_largest(np.full(4, 0.25), 2).tolist() == [0.5, 0.5, 0.0, 0.0]


def test_warm_start_teaches_by_counts_before_the_first_ask():
    cold, warm = Tanbr(K, V, seed=1), Tanbr(K, V, seed=1)
    blends = np.random.default_rng(0).dirichlet(np.ones(K), size=60)
    warm.warm_start(blends, np.array([toy_reward(x) for x in blends]))
    rewards = [np.mean([toy_reward(x)[0] for x in play(r, 12)]) for r in (cold, warm)]
    assert rewards[1] > rewards[0] + 0.1
    few, many = (Tanbr(3, 2, seed=0) for _ in range(2))
    few.warm_start(np.eye(3), np.full((3, 2), 0.9))
    many.warm_start(np.eye(3), np.full((3, 2), 0.9), np.full((3, 2), 60))
    assert many.ask([0.5, 0.5]).why.uncertainty < few.ask([0.5, 0.5]).why.uncertainty
    with pytest.raises(InputError, match="counts must be 3 rows of 2 numbers"):
        few.warm_start(np.eye(3), np.full((3, 2), 0.9), np.ones(3))


OTHER = {  # another value of every setting of the default mode
    "beta": 3.0, "own_experts": (3, 2, 1, 0), "baseline": "even", "change": 5.0,
    "task_groups": (0, 1, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DefaultModeConfig.model_fields)
def test_every_setting_is_applied_to_a_saved_router_or_refused(tmp_path, name):
    old = taught(K, V)
    play(old, 30)
    old.save(tmp_path / "state.npz")
    other = {"own_experts": ()} if name == "baseline" else {}  # which no other baseline takes
    changed = old.config.default.model_copy(update={name: OTHER[name], **other})
    asked = Tanbr(K, V, config=old.config.model_copy(update={"default": changed}))
    if name in MADE_WITH:
        with pytest.raises(SettingsError, match=rf"with default\.(own_experts|{name}) = .*--state.*--adopt") as raised:
            asked.resumed(tmp_path / "state.npz")
        assert "\n" not in str(raised.value)
        return
    resumed = asked.resumed(tmp_path / "state.npz")
    assert getattr(resumed.config.default, name) == OTHER[name]
    np.testing.assert_array_equal(resumed.expected, old.expected)  # what was learned is there
    play(resumed, 30)  # and goes on


def test_a_new_beta_widens_the_bound_of_a_saved_router_and_other_arguments_are_refused(tmp_path):
    old = Tanbr(K, V, config={"default": {"beta": 0.5}})
    play(old, 10)
    old.save(tmp_path / "state.npz")
    new = Tanbr(K, V, config={"default": {"beta": 3.0}, "paper": {"width": 16}}).resumed(tmp_path / "state.npz")
    assert new.ask(EVEN).why.uncertainty > 2 * old.ask(EVEN).why.uncertainty
    for asked, said in (
        (Tanbr(K, V, max_active=2), "max_active = 5, and cannot go on with 2"),
        (Tanbr(K, V, seed=3), "seed = 0, and cannot go on with 3"),
        (Tanbr(K, V, mode="paper"), "mode = 'default', and cannot go on with 'paper'"),
        (Tanbr(K, V + 1), "tasks = 4, and cannot go on with 5"),
    ):
        with pytest.raises(SettingsError, match=said):
            asked.resumed(tmp_path / "state.npz")


def test_states_of_another_kind_version_or_release_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    RandomBlend(K, V).save(path)
    with pytest.raises(StateError, match="'random-blend' router"):
        Tanbr.load(path)
    with pytest.raises(StateError, match=r"was written by tanbr 0\.1; start a new state folder"):
        Tanbr.load(Path(__file__).parent / "states" / "default.npz")
    with monkeypatch.context() as patch:
        patch.setattr(state, "VERSION", state.VERSION + 1)
        Tanbr(K, V).save(path)
    with pytest.raises(StateError, match="state version 2, this tanbr reads 1"):
        Tanbr.load(path)


def test_states_with_odd_open_decisions_are_refused(tmp_path):
    path = tmp_path / "state.npz"
    router = Tanbr(K, V)
    router.ask(EVEN, models=2)
    router.save(path)
    header, arrays = read_state(path)
    held = header["open"][0]
    for odd in (
        {"blends": [[0.5, 0.5]] * 2}, {"blends": held["blends"][:1]}, {"blends": "ab"}, {"blends": [[[0.2] * K]] * 2},
        {"blends": [[2.0] * K] * 2}, {"estimates": [[0.0]] * 2}, {"estimates": [[None] * V] * 2}, {"terms": [{}, {}]},
        {"terms": held["terms"][:1]}, {"task_mix": [1.0] * V}, {"id": None},
    ):  # fmt: skip
        write_state(path, {**header, "open": [{**held, **odd}]}, arrays)
        with pytest.raises(StateError, match="does not fit"):
            Tanbr.load(path)
