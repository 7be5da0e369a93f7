"""The blends that need no reward: a router starts there, and leaves them for what earns more."""

import numpy as np
import pytest

from tanbr.errors import ConfigError, InputError
from tanbr.router import Tanbr
from tanbr.router.choose import baseline_panel
from tanbr.router.config import RouterConfig
from tanbr.router.known import Rules
from tanbr.router.panel import Readings
from tanbr.router.simplex import Sizes

K = V = 4
OWN = (2, 0, 1, 3)
MIX = np.array([0.4, 0.3, 0.2, 0.1])


def straight(mix, own=OWN, models=1, *, active=K):
    """The panel that needs no reward."""
    rules = Rules.of(Sizes(K, V, active), RouterConfig().of_requests(own).default)
    return baseline_panel(rules, Readings.of(mix), models)


def test_the_baseline_follows_the_shares_or_is_even():
    np.testing.assert_allclose(straight(MIX)[0], [[0.3, 0.2, 0.4, 0.1]])
    np.testing.assert_allclose(straight(MIX, active=1)[0], [[0.0, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(straight(MIX, (), 3)[0], 0.25)
    blends, home = straight(MIX, models=2)
    assert set(home.tolist()) == {0, 1}
    for task, expert in enumerate(OWN):
        group = home == home[task]
        assert blends[home[task], expert] == pytest.approx(MIX[task] / MIX[group].sum())


@pytest.mark.parametrize("own", [(), OWN])
@pytest.mark.parametrize("models", [1, 2])
def test_it_starts_at_the_baseline_and_a_better_panel_is_found(models, own):
    """One expert is better for all tasks than their own, and than all alike."""
    router, rng = Tanbr(K, V, seed=0, config=RouterConfig().of_requests(own)), np.random.default_rng(0)
    blends, home = straight(MIX, own, models)
    for slot in range(80):
        panel = router.ask(MIX, models=models)
        if slot == 0:
            np.testing.assert_array_equal(panel.blends, blends)
            assert not own or panel.task_models.tolist() == home.tolist()
        noise = 0.02 * rng.normal(size=(models, V))
        rewards = 0.3 + 0.5 * np.repeat(panel.blends[:, :1], V, axis=1) + noise
        router.tell(panel, np.clip(rewards, 0, 1), np.full((models, V), 40.0))
    served = panel.blends[panel.task_models]
    assert MIX @ served[:, 0] > MIX @ blends[home][:, 0] + 0.1


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"baseline": "best"}, ConfigError, "baseline"),
        ({"baseline": "proportional"}, InputError, "needs own_experts"),
        ({"own_experts": OWN}, InputError, "no other baseline takes them"),
        ({"baseline": "proportional", "own_experts": (0, 1)}, InputError, "own_experts must name one"),
        ({"baseline": "proportional", "own_experts": (0, 1, 2, K)}, InputError, "own_experts must name one"),
    ],
)
def test_what_makes_no_baseline_is_refused(changes, error, says):
    with pytest.raises(error, match=says) as raised:
        Tanbr(K, V, config={"default": changes})
    assert "\n" not in str(raised.value)
