import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.serve.clients import Clients
from tanbr.serve.config import RewardConfig
from tanbr.serve.rewards import VERDICT, Tally, share_out
from tanbr.serve.rows import Given

TRUSTING = Clients(RewardConfig())


def test_a_reward_goes_to_the_task_that_is_named_or_by_bayes() -> None:
    mix = np.array([0.9, 0.1])
    assert share_out(1, np.array([1.0, 0.0]), mix).tolist() == [0, 1]
    np.testing.assert_allclose(share_out(None, np.array([0.5, 0.5]), mix), [0.9, 0.1])
    np.testing.assert_allclose(share_out(None, np.array([0.1, 0.9]), mix), [0.5, 0.5])
    assert share_out(None, None, mix) is mix


def test_sources_count_by_their_weights_and_a_task_nobody_speaks_for_is_unseen() -> None:
    tally = Tally(2, RewardConfig(confidence=0.5))
    tally.add_feedback(
        [Given(1, 0, "feedback", 0, 1.0, None), Given(2, 0, "labels", 0, 0.0, None)], np.array([0.5, 0.5]), TRUSTING
    )
    tally.add("confidence", np.array([2.0, 0.04]), np.array([2.0, 0.04]))
    tally.add("shadow", np.array([9.0, 9.0]), np.array([9.0, 9.0]))  # weight 0: off
    reward, counts = tally.reward
    np.testing.assert_allclose(reward, [2 / 3, np.nan])
    np.testing.assert_allclose(counts, [3.0, 0.0])
    assert tally.shares["feedback"] == tally.shares["labels"]
    assert tally.shares["shadow"] == 0


@given(
    st.lists(st.tuples(st.floats(0, 1), st.lists(st.floats(0.01, 1), min_size=3, max_size=3)), min_size=1, max_size=20)
)
@settings(max_examples=40)
def test_every_reward_is_shared_out_whole_and_the_mean_stays_between_its_rewards(
    given_rewards: list[tuple[float, list[float]]],
) -> None:
    tally = Tally(3, RewardConfig())
    rows = [
        Given(i, 0, "feedback", None, reward, np.array(posterior) / sum(posterior))
        for i, (reward, posterior) in enumerate(given_rewards)
    ]
    tally.add_feedback(rows, np.full(3, 1 / 3), TRUSTING)
    total, counts = tally.weighted
    np.testing.assert_allclose(counts.sum(), len(rows))
    np.testing.assert_allclose(total.sum(), sum(row.reward for row in rows), atol=1e-9)
    reward, _ = tally.reward
    seen = reward[~np.isnan(reward)]
    assert (seen >= min(row.reward for row in rows) - 1e-9).all()
    assert (seen <= max(row.reward for row in rows) + 1e-9).all()


def test_a_verdict_counts_where_every_source_is_off() -> None:
    tally = Tally(2, RewardConfig(feedback=0.0, labels=0.0))
    tally.add("feedback", np.ones(2), np.ones(2))
    tally.add(VERDICT, np.zeros(2), np.array([10.0, 10.0]))
    reward, counts = tally.reward
    assert reward.tolist() == [0.0, 0.0]
    assert counts.tolist() == [10.0, 10.0]


def test_rewards_of_texts_that_are_unlike_any_task_are_left_out_unless_they_name_one() -> None:
    tally = Tally(2, RewardConfig())
    posterior = np.array([0.5, 0.5])
    rows = [
        Given(1, 0, "feedback", None, 1.0, posterior),
        Given(2, 0, "feedback", None, 0.0, posterior, novel=True),
        Given(3, 0, "feedback", 1, 0.0, posterior, novel=True),
    ]
    tally.add_feedback(rows, posterior, TRUSTING)
    reward, counts = tally.reward
    assert counts.tolist() == [0.5, 1.5]
    assert reward[0] == 1.0
