import json
from pathlib import Path

import numpy as np
import pytest

from tanbr import state
from tanbr.errors import DecisionError, InputError, SettingsError, StateError
from tanbr.lab.rivals import FixedBlend, Nucb, Proportional, RandomBlend, VectorGP
from tanbr.router import Tanbr
from tanbr.router.config import MADE_WITH, DefaultModeConfig, RouterConfig
from tanbr.state import HEADER, read_state, write_state
from tanbr.testing import toy

K, V = toy.K, toy.V
STATES = Path(__file__).parent / "states"


def test_history_keeps_the_last_slots_and_what_was_told():
    router = Tanbr(K, V, config=RouterConfig(history=5))
    toy.play(router, 12)
    assert [told.decision.id for told in router.history] == [7, 8, 9, 10, 11]
    decision = router.ask(toy.EVEN)
    router.tell(decision, [0.1, np.nan, 0.3, 0.4], [5, 0, 1, 2])
    last = router.history[-1]
    assert last.decision is decision
    assert np.array_equal(last.reward, [0.1, np.nan, 0.3, 0.4], equal_nan=True)
    assert last.counts.tolist() == [5, 0, 1, 2]


def test_explain_finds_open_and_remembered_decisions_only():
    router = Tanbr(K, V, config=RouterConfig(history=3))
    toy.play(router, 10)
    decision = router.ask(toy.EVEN)
    assert router.explain(decision) == router.explain(decision.id)
    assert router.explain(9).candidates > 1
    with pytest.raises(DecisionError, match="neither open nor among"):
        router.explain(2)
    with pytest.raises(DecisionError, match="decision or its id"):
        router.explain("2")


def test_terms_add_up_to_the_bound():
    router = Tanbr(K, V)
    toy.play(router, 30)
    terms = router.explain(router.ask(toy.EVEN))
    assert terms.bound == terms.mean + terms.granularity + terms.uncertainty
    assert 0 < terms.mean < 1


def test_a_state_of_another_kind_is_refused(tmp_path):
    RandomBlend(K, V).save(tmp_path / "state.npz")
    with pytest.raises(StateError, match="'random-blend' router"):
        Tanbr.load(tmp_path / "state.npz")


def test_a_newer_version_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(state, "VERSION", state.VERSION + 1)
        Tanbr(K, V).save(tmp_path / "state.npz")
    with pytest.raises(StateError, match="state version 2, this tanbr reads 1"):
        Tanbr.load(tmp_path / "state.npz")


def test_a_state_that_lacks_arrays_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    Tanbr(K, V).save(path)
    header, arrays = read_state(path)
    write_state(path, header, {name: a for name, a in arrays.items() if name != "policy.posterior.alpha"})
    with pytest.raises(StateError, match="does not fit"):
        Tanbr.load(path)


def test_a_header_changed_by_hand_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    Tanbr(K, V).save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    label = json.loads(arrays[HEADER].tobytes())
    label["header"]["next_id"] = 99
    arrays[HEADER] = np.frombuffer(json.dumps(label).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(StateError, match="checksum"):
        Tanbr.load(path)


def test_pickled_arrays_are_never_loaded(tmp_path):
    np.savez(tmp_path / "state.npz", **{HEADER: np.array([{"a": 1}], dtype=object)})
    with pytest.raises(StateError, match="not a whole state"):
        Tanbr.load(tmp_path / "state.npz")


def test_warm_start_teaches_before_the_first_ask():
    cold, warm = Tanbr(K, V, seed=1), Tanbr(K, V, seed=1)
    rng = np.random.default_rng(0)
    blends = rng.dirichlet(np.ones(K), size=60)
    warm.warm_start(blends, np.array([toy.toy_reward(x) for x in blends]))
    rewards = [np.mean([toy.toy_reward(x)[0] for x in toy.play(r, 25)]) for r in (cold, warm)]
    assert rewards[1] > rewards[0] + 0.1


def test_a_warm_start_weighs_rewards_by_their_counts():
    few, many = (Tanbr(3, 2, seed=0) for _ in range(2))
    blends, rewards = np.eye(3), np.full((3, 2), 0.9)
    few.warm_start(blends, rewards)
    many.warm_start(blends, rewards, np.full((3, 2), 60))
    widths = [router.explain(router.ask([0.5, 0.5])).uncertainty for router in (few, many)]
    assert widths[1] < widths[0]
    with pytest.raises(InputError, match="counts must be a table like rewards"):
        few.warm_start(blends, rewards, np.ones(3))


@pytest.mark.parametrize("name", json.loads((STATES / "after.json").read_text()))
def test_states_of_layout_1_go_on_as_they_did(name):
    """Each was saved after 25 slots by the router that came before; it then chose as `after.json` says."""
    router = {"nucb": Nucb, "vector-gp": VectorGP, "random": RandomBlend, "fixed": FixedBlend,
              "proportional": Proportional}.get(name, Tanbr).load(STATES / f"{name}.npz")  # fmt: skip
    assert len(router.open) == 1
    assert len(router.history) == 25
    rng = np.random.default_rng(1)
    for expected in json.loads((STATES / "after.json").read_text())[name]:
        decision = router.ask(rng.dirichlet(np.ones(2)))
        np.testing.assert_allclose(decision.blend, expected, rtol=0, atol=1e-9)
        reward = np.clip(0.2 + 0.6 * decision.blend[0] + 0.05 * rng.normal(size=2), 0, 1)
        if rng.random() < 0.2:
            reward[0] = np.nan
        router.tell(decision, reward)


def test_a_slot_without_rewards_teaches_nothing_at_all():
    router = Tanbr(K, V, mode="paper")
    toy.play(router, 10)
    before = router.tree
    router.tell(router.ask(toy.EVEN), np.full(V, np.nan))
    assert router.open == ()
    assert np.array_equal(before.visits, router.tree.visits)
    assert np.array_equal(before.value, router.tree.value, equal_nan=True)


def changed(value):
    """Another value of the same kind, near enough to be allowed wherever `value` is."""
    if isinstance(value, bool | str):
        return {False: True, True: False, "none": "even"}.get(value, value)
    if isinstance(value, tuple):
        return (*value, *value[-1:])
    return value + 1 if isinstance(value, int) else value * 0.9


@pytest.mark.parametrize("name", DefaultModeConfig.model_fields)
def test_every_setting_is_applied_to_a_saved_router_or_refused(tmp_path, name):
    config = {"own_experts": (0, 1, 2, 3), "interference": ((0.0,) * V,) * V, "margin": 0.01}
    config["baseline"] = "proportional" if name == "own_experts" else "none"
    old = Tanbr(K, V, config={"default": config})
    toy.play(old, 30)
    old.save(tmp_path / "state.npz")
    value = getattr(old.config.default, name)
    other = {"own_experts": (3, 2, 1, 0), "interference": ((0.1,) * V,) * V, "arms": 8}.get(name, changed(value))
    asked = Tanbr(K, V, config={"default": {**config, name: other}})
    if name in MADE_WITH:
        with pytest.raises(SettingsError, match=rf"with default\.{name} = .*--state.*--adopt") as raised:
            asked.resumed(tmp_path / "state.npz")
        assert "\n" not in str(raised.value)
        return
    resumed = asked.resumed(tmp_path / "state.npz")
    assert getattr(resumed.config.default, name) == other != value
    assert [told.decision.id for told in resumed.history] == [told.decision.id for told in old.history]
    np.testing.assert_array_equal(resumed.tree.value, old.tree.value)  # what was learned is there
    toy.play(resumed, 30)  # and goes on


def test_a_new_beta_widens_the_bound_of_a_saved_router(tmp_path):
    old = Tanbr(K, V, config={"default": {"beta": 0.5}})
    toy.play(old, 10)
    old.save(tmp_path / "state.npz")
    new = Tanbr(K, V, config={"default": {"beta": 3.0}}).resumed(tmp_path / "state.npz")
    widths = [router.explain(router.ask(toy.EVEN)).uncertainty for router in (old, new)]
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Tanbr(K, V, max_active=2), "max_active = 5, and cannot go on with 2"),
        (Tanbr(K, V, seed=3), "seed = 0, and cannot go on with 3"),
        (Tanbr(K, V, mode="paper"), "mode = 'default', and cannot go on with 'paper'"),
        (Tanbr(K, V + 1), "tasks = 4, and cannot go on with 5"),
    ],
)
def test_a_router_of_other_arguments_is_refused(tmp_path, asked, said):
    Tanbr(K, V).save(tmp_path / "state.npz")
    with pytest.raises(SettingsError, match=said):
        asked.resumed(tmp_path / "state.npz")


def test_settings_that_a_router_does_not_use_are_not_compared(tmp_path):
    Tanbr(K, V).save(tmp_path / "state.npz")
    Tanbr(K, V, config={"paper": {"width": 16}}).resumed(tmp_path / "state.npz")
    assert len(Tanbr(K, V, config={"history": 3}).resumed(tmp_path / "state.npz").history) == 0
