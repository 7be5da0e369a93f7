from pathlib import Path

import numpy as np
import pytest
from tanbr.groups import Groups
from tanbr.testing import CHECKS, check_learns
from tanbr.testing.toy import EVEN, V, play, toy_reward

from tanbr.errors import InputError, StateError
from tanbr.router import GroupedRouter, Tanbr
from tanbr.router.config import RouterConfig

EIGHT = Groups.of([[0, 1, [2, 3]], [4, 5], [6, 7]])


def make(experts, tasks, **options):
    """Pairs of experts that are split while the checks run."""
    pairs = [[0], [1]]
    if isinstance(experts, int) and experts > 2:
        pairs = [list(range(first, min(first + 2, experts))) for first in range(0, experts, 2)]
    config = {"groups": {"splits": 4, "settle": 12, "share": 0.2}}
    return GroupedRouter(experts, tasks, groups=Groups.of(pairs), config=config, **options)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check) -> None:
    check(make)


def test_learns() -> None:
    check_learns(make, slots=120, at_least=0.2)


def test_groups_of_one_choose_as_the_plain_router_does_bit_for_bit() -> None:
    grouped = GroupedRouter(5, V, groups=Groups.by_labels(range(5)), seed=3)
    assert np.array_equal(play(grouped, 50), play(Tanbr(5, V, seed=3), 50))


def test_blends_keep_the_shares_of_each_group() -> None:
    groups = Groups.of([[0, 1], [2, 3, 4]], loads=[1, 3, 1, 1, 2])
    router = GroupedRouter(5, V, groups=groups, config={"groups": {"splits": 0}})
    for blend in play(router, 25):
        np.testing.assert_allclose(groups.expand(groups.project(blend)), blend, rtol=0, atol=1e-15)
    assert router.groups is router.first_groups


def only_two(blend):
    """A reward that grows with expert 2 alone."""
    return np.full(V, 0.1 + 0.8 * blend[2])


def taught(splits: int, slots: int) -> GroupedRouter:
    router = GroupedRouter(8, V, groups=EIGHT, config={"groups": {"splits": splits, "settle": 20}})
    for _ in range(slots):
        decision = router.ask(EVEN)
        router.tell(decision, only_two(decision.blend))
    return router


def test_the_group_that_counts_is_split_by_its_own_lists_until_its_expert_is_found() -> None:
    router = taught(4, 90)
    assert (2,) in router.groups.members
    assert (4, 5) in router.groups.members  # what earns nothing stays together
    assert router.ask(EVEN).blend[2] > 0.9
    assert taught(0, 90).ask(EVEN).blend[2] == pytest.approx(0.25, abs=0.01)  # at most its share of the group


def test_what_was_learned_over_groups_is_known_after_a_split() -> None:
    router = taught(1, 20)
    assert len(router.groups) == 4
    decision = router.ask(EVEN)
    assert decision.blend[:4].sum() > 0.9  # still where the reward is, without an opening of its own
    assert router.explain(decision).mean > 0.15  # and not at the prior's 1/2, nor at 0
    assert abs(router.explain(decision).mean - only_two(decision.blend)[0]) < 0.2


def test_open_decisions_outlive_a_split() -> None:
    router = taught(1, 19)
    late = [router.ask(EVEN) for _ in range(3)]
    assert len(router.groups) == 3
    for decision in late:
        router.tell(decision, only_two(decision.blend))
    assert len(router.groups) == 4
    assert router.open == ()


def test_a_state_remembers_its_groups_and_splits(tmp_path: Path) -> None:
    router = taught(2, 45)
    router.save(tmp_path / "state.npz")
    again = GroupedRouter.load(tmp_path / "state.npz")
    assert again.first_groups == EIGHT
    assert again.groups == router.groups
    assert len(again.groups) == 5
    with pytest.raises(StateError, match="'grouped' router"):
        Tanbr.load(tmp_path / "state.npz")


def test_a_baseline_over_experts_is_one_over_groups_and_debts_forbid_splits() -> None:
    config = RouterConfig.model_validate({"groups": {"splits": 4, "settle": 5, "share": 0.01}}).of_requests()
    router = GroupedRouter(8, V, groups=EIGHT, config=config)
    np.testing.assert_allclose(router.ask(EVEN).blend, np.full(8, 1 / 8), rtol=0, atol=1e-15)
    for _ in range(12):
        decision = router.ask(EVEN)
        router.tell(decision, toy_reward(decision.blend), np.full(V, 16.0))
    account = router.account
    assert account is not None
    assert account.slots == 12  # those before the split count on
    assert len(router.groups) > 3
    given = RouterConfig.model_validate({"default": {"baseline": (0.5, 0.5, 0, 0, 0, 0, 0, 0)}})
    fixed = GroupedRouter(8, V, groups=EIGHT, config=given)
    np.testing.assert_allclose(EIGHT.project(fixed.ask(EVEN).blend), [1, 0, 0], rtol=0, atol=1e-15)


def test_a_task_s_own_expert_speaks_for_its_group() -> None:
    config = RouterConfig().of_requests((7, 0, 4, 5))
    blend = GroupedRouter(8, V, groups=EIGHT, config=config).ask([0.7, 0.1, 0.1, 0.1]).blend
    np.testing.assert_allclose(EIGHT.project(blend), [0.1, 0.2, 0.7], rtol=0, atol=1e-15)


def test_warm_starts_of_single_experts_are_used_by_the_groups_to_come() -> None:
    router = GroupedRouter(8, V, groups=EIGHT, config={"groups": {"settle": 1, "share": 0.01, "splits": 2}})
    router.warm_start(np.eye(8), [only_two(x) for x in np.eye(8)], np.full((8, V), 50.0))
    for _ in range(2):
        decision = router.ask(EVEN)
        router.tell(decision, only_two(decision.blend))
    assert (2,) in router.groups.members or (2, 3) in router.groups.members
    group = router.groups.of_expert[2]
    assert router.groups.project(router.ask(EVEN).blend).argmax() == group


def test_bad_groups_and_settings_are_refused() -> None:
    for groups in (Groups.of([[0, 1, 2]]), Groups.of([[0], [1]])):
        with pytest.raises(InputError, match="two groups or more of its 3 experts"):
            GroupedRouter(3, V, groups=groups)
    with pytest.raises(InputError, match="own_experts"):
        GroupedRouter(8, V, groups=EIGHT, config={"default": {"own_experts": (9, 0, 0, 0)}})
