import numpy as np
import pytest

from tanbr.errors import InputError
from tanbr.grouping.by_reward import by_reward, effects
from tanbr.router.groups import Groups


def planted(*, experts=24, families=4, tasks=5, seed=0):
    rng = np.random.default_rng(seed)
    family = rng.permutation(np.arange(experts) % families)
    of_family = rng.uniform(0.2, 0.8, (families, tasks))
    return family, np.clip(of_family[family] + 0.02 * rng.normal(size=(experts, tasks)), 0, 1)


def families_of(groups: Groups, family):
    return all(len({family[k] for k in members}) == 1 for members in groups.members)


def test_experts_that_earn_alike_alone_are_grouped() -> None:
    family, earned = planted()
    found = by_reward(np.eye(24), earned, np.full(earned.shape, 60.0), into=4, model_sha256="abc")
    assert families_of(found.groups, family)
    assert found.groups.found_by == "reward"
    assert found.groups.model_sha256 == "abc"
    assert found.within > 0.95 > found.between
    np.testing.assert_allclose(effects(np.eye(24), earned), earned, rtol=0, atol=1e-3)


def test_mixed_blends_with_unseen_tasks_do_as_well() -> None:
    family, earned = planted()
    rng = np.random.default_rng(1)
    blends = rng.dirichlet(np.full(24, 0.2), 400)
    rewards = np.clip(blends @ earned + 0.01 * rng.normal(size=(400, 5)), 0, 1)
    rewards[rng.random(rewards.shape) < 0.3] = np.nan
    assert families_of(by_reward(blends, rewards, into=4).groups, family)


def test_an_expert_that_no_reward_speaks_for_is_refused() -> None:
    rewards = np.full((3, 2), 0.5)
    with pytest.raises(InputError, match="none with expert 3 for task 0"):
        by_reward(np.eye(4)[:3], rewards, into=2)
    rewards[1, 1] = np.nan
    with pytest.raises(InputError, match="none with expert 1 for task 1"):
        by_reward(np.eye(3), rewards, into=2)


@pytest.mark.parametrize("rewards", [np.full((2, 2), 0.5), np.full((3, 2), 1.5), np.zeros((0, 2))])
def test_tables_that_do_not_fit_are_refused(rewards) -> None:
    with pytest.raises(InputError):
        by_reward(np.eye(3), rewards, into=2)
