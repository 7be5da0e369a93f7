import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import DataError, InputError
from tanbr.router import Groups, Tanbr
from tanbr.router.config import RouterConfig
from tanbr.router.contract import EVEN, V, play

LISTS = [[0, 3, 5], [1, 2], [4]]


def test_groups_know_their_members_shares_and_place() -> None:
    groups = Groups.of(LISTS, loads=[1, 1, 3, 1, 9, 2])
    assert len(groups) == 3
    assert groups.experts == 6
    assert groups.members == ((0, 3, 5), (1, 2), (4,))
    assert groups.of_expert.tolist() == [0, 1, 1, 0, 2, 0]
    assert groups.shares.tolist() == [0.25, 0.25, 0.75, 0.25, 1.0, 0.5]


def test_a_blend_over_groups_is_a_blend_over_experts_and_back() -> None:
    groups = Groups.of(LISTS)
    x = groups.expand(np.array([[0.6, 0.4, 0.0], [0.0, 0.0, 1.0]]))
    np.testing.assert_allclose(x[0], [0.2, 0.2, 0.2, 0.2, 0.0, 0.2], rtol=0, atol=1e-15)
    assert x[1].tolist() == [0, 0, 0, 0, 1, 0]
    np.testing.assert_allclose(groups.project(x), [[0.6, 0.4, 0.0], [0.0, 0.0, 1.0]], rtol=0, atol=1e-15)
    assert groups.project(np.eye(6)[2]).tolist() == [0, 1, 0]


def test_groups_of_one_change_nothing() -> None:
    blend = np.random.default_rng(0).dirichlet(np.ones(5))
    one_each = Groups.by_labels(range(5))
    assert np.array_equal(one_each.expand(blend), blend)
    assert np.array_equal(one_each.project(blend), blend)


def test_with_few_experts_every_group_keeps_its_weight_and_its_largest_shares() -> None:
    groups = Groups.by_labels([0] * 4 + [1] * 4 + [2] * 4)
    x = groups.expand(np.array([0.6, 0.3, 0.1]), max_active=5)
    assert np.count_nonzero(x) == 5
    np.testing.assert_allclose(groups.project(x), [0.6, 0.3, 0.1], rtol=0, atol=1e-15)  # none is cut off
    assert [np.count_nonzero(x[4 * g : 4 * g + 4]) for g in range(3)] == [3, 1, 1]
    few = Groups.of([[0, 1, 2], [3]], loads=[1, 5, 3, 1]).expand(np.array([1.0, 0.0]), max_active=2)
    np.testing.assert_allclose(few, [0, 0.625, 0.375, 0], rtol=0, atol=1e-15)
    two = groups.expand(np.array([0.5, 0.3, 0.2]), max_active=2)[[0, 4, 8]]
    np.testing.assert_allclose(two, [0.625, 0.375, 0], rtol=0, atol=1e-15)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.integers(1, 12), st.integers(0, 2**31))
def test_whatever_the_groups_a_blend_stays_one(labels: list[int], most: int, seed: int) -> None:
    groups, rng = Groups.by_labels(labels), np.random.default_rng(seed)
    K, M = groups.experts, len(groups)
    y = rng.dirichlet(np.full(M, 0.5))
    y = np.where(y >= np.sort(y)[-min(most, M)], y, 0.0)  # no more groups than experts are allowed
    y /= y.sum()
    x = groups.expand(y, max_active=min(most, K))
    assert (x >= 0).all()
    assert abs(x.sum() - 1) <= K * 1e-15
    assert np.count_nonzero(x) <= min(most, K)
    np.testing.assert_allclose(groups.project(x), y, rtol=0, atol=K * 1e-15)


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ([[0, 1], [1, 2]], "expert 1 in two"),
        ([[0, 1], [3]], "none with expert 2"),
        ([[0, 1], []], "empty"),
        ([], "every group"),
        ([[0, "1"]], "expert numbers"),
        ([[True, 0]], "expert numbers"),
        ("01", "lists of experts"),
        ([[0, 1.5]], "expert numbers"),
        ([[0, [1, 2]]], "expert numbers"),
    ],
)
def test_what_is_no_partition_is_refused(lists: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Groups.of(lists)  # type: ignore[arg-type]


@pytest.mark.parametrize("loads", [[1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, -2.0]])
def test_loads_must_be_one_an_expert_and_above_0(loads: list[float]) -> None:
    with pytest.raises(InputError, match="loads"):
        Groups.of([[0], [1]], loads=loads)


def test_a_file_comes_back_equal_and_is_known_by_its_digest(tmp_path: Path) -> None:
    groups = Groups.of(LISTS, loads=[1, 1, 3, 1, 9, 2], found_by="routing", model_sha256="abc")
    groups.save(tmp_path / "groups.json", command="tanbr groups")
    again = Groups.load(tmp_path / "groups.json")
    assert again == groups
    assert again.digest == groups.digest != Groups.of(LISTS).digest
    assert json.loads((tmp_path / "groups.json").read_text())["command"] == "tanbr groups"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"groups": 3}', '{"groups": [[0], [0]]}', "[" * 100_000])
def test_a_corrupt_file_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "groups.json").write_text(text)
    with pytest.raises(DataError, match=r"groups\.json"):
        Groups.load(tmp_path / "groups.json")
    with pytest.raises(DataError, match=r"missing\.json"):
        Groups.load(tmp_path / "missing.json")


def test_groups_of_another_checkpoint_are_refused() -> None:
    groups = Groups.of([[0], [1]], model_sha256="abc")
    assert groups.check(2, "abc") is groups
    assert Groups.of([[0], [1]]).check(2, "abc")
    with pytest.raises(DataError, match="other weights"):
        groups.check(2, "abd")
    with pytest.raises(DataError, match="2 experts, the checkpoint 3"):
        groups.check(3, "abc")


EIGHT = Groups.of([[0, 1, 2, 3], [4, 5], [6, 7]])


def test_groups_of_one_choose_as_the_plain_router_does_bit_for_bit() -> None:
    over = Tanbr(5, V, groups=Groups.by_labels(range(5)), seed=3)
    assert np.array_equal(play(over, 50), play(Tanbr(5, V, seed=3), 50))


def test_a_router_blends_within_groups_by_their_shares_and_remembers_them(tmp_path: Path) -> None:
    groups = Groups.of([[0, 1], [2, 3, 4]], loads=[1, 3, 1, 1, 2])
    router = Tanbr(5, V, groups=groups)
    for blend in play(router, 25):
        np.testing.assert_allclose(groups.expand(groups.project(blend)), blend, rtol=0, atol=1e-15)
    router.save(tmp_path / "state.npz")
    assert Tanbr.load(tmp_path / "state.npz").groups == groups
    assert Tanbr(5, V).groups is None


def test_baseline_and_own_experts_speak_for_their_groups() -> None:
    even = Tanbr(8, V, groups=EIGHT, config=RouterConfig().of_requests())
    np.testing.assert_allclose(even.ask(EVEN).blend, np.full(8, 1 / 8), rtol=0, atol=1e-15)
    given = RouterConfig.model_validate({"default": {"baseline": (0.5, 0.5, 0, 0, 0, 0, 0, 0)}})
    fixed = Tanbr(8, V, groups=EIGHT, config=given).ask(EVEN).blend
    np.testing.assert_allclose(EIGHT.project(fixed), [1, 0, 0], rtol=0, atol=1e-15)
    own = Tanbr(8, V, groups=EIGHT, config=RouterConfig().of_requests((7, 0, 4, 5))).ask([0.7, 0.1, 0.1, 0.1]).blend
    np.testing.assert_allclose(EIGHT.project(own), [0.1, 0.2, 0.7], rtol=0, atol=1e-15)


def test_groups_that_are_none_of_this_router_are_refused() -> None:
    for groups in (Groups.of([[0, 1, 2]]), Groups.of([[0], [1]])):
        with pytest.raises(InputError, match="two groups or more of its 3 experts"):
            Tanbr(3, V, groups=groups)
    with pytest.raises(InputError, match="own_experts"):
        Tanbr(8, V, groups=EIGHT, config={"default": {"own_experts": (9, 0, 0, 0)}})
    with pytest.raises(InputError, match='mode "default"'):
        Tanbr(8, V, groups=EIGHT, mode="paper")
