"""From single rewards to a slot's: credit by task, and how much each client's word counts."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.loop.config import RewardConfig
from tanbr.loop.rewards import VERDICT, Given, Tally, Trust, credited, shares
from tanbr.types import FloatArray

EVEN = np.full(3, 1 / 3)
TRUTH = np.array([0.85, 0.55, 0.25])  # reward of each task


def said(client: str, reward: float, times: int = 1, *, task: int | None = 0, place: int = 0) -> list[Given]:
    return [Given(0, 0, place, "feedback", task, reward, None, client)] * times


def tallied(rows: list[Given], mix: FloatArray, trust: Trust | None = None) -> Tally:
    (tally,) = credited([Tally(len(mix))], rows, mix, trust or Trust())
    return tally


# --- credit -----------------------------------------------------------------------------------------------------------


def test_a_reward_goes_to_the_task_that_is_named_or_by_bayes() -> None:
    mix = np.array([0.9, 0.1])

    def share(task: int | None, posterior: list[float] | None) -> FloatArray:
        return Given(1, 0, 0, "feedback", task, 1.0, None if posterior is None else np.array(posterior)).share(mix)

    assert share(1, [1.0, 0.0]).tolist() == [0, 1]
    np.testing.assert_allclose(share(None, [0.5, 0.5]), mix)
    np.testing.assert_allclose(share(None, [0.1, 0.9]), [0.5, 0.5])
    assert share(None, None) is mix


def test_sources_count_by_their_weights_and_a_task_nobody_speaks_for_is_unseen() -> None:
    config = RewardConfig(labels=0.5)
    rows = [*said("", 1.0), Given(2, 0, 0, "labels", 0, 0.0)]
    tally = tallied(rows, np.array([0.5, 0.5])).add("labels", np.array([1.0, 0.04]), np.array([1.0, 0.04]))
    tally = tally.add("other", np.full(2, 9.0), np.full(2, 9.0))  # weight 0: off
    reward, counts = tally.reward(config)
    np.testing.assert_allclose(reward, [1.5 / 2, np.nan])
    np.testing.assert_allclose(counts, [2.0, 0.0])
    of = shares([tally, Tally(2)], config)
    assert (of["feedback"], of["other"], sum(of.values())) == (pytest.approx(1 / 2.02), 0, pytest.approx(1.0))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.lists(st.floats(0.01, 1), min_size=3, max_size=3)), min_size=1, max_size=20)
)
@settings(max_examples=40)
def test_every_reward_is_shared_out_whole_and_the_mean_stays_between_its_rewards(
    told: list[tuple[float, list[float]]],
) -> None:
    rows = [Given(i, 0, 0, "feedback", None, reward, np.array(p) / sum(p)) for i, (reward, p) in enumerate(told)]
    tally, config = tallied(rows, EVEN), RewardConfig()
    sums, counts = tally.parts["feedback"]
    np.testing.assert_allclose(counts.sum(), len(rows))
    np.testing.assert_allclose(sums.sum(), sum(row.reward for row in rows), atol=1e-9)
    reward, _ = tally.reward(config)
    seen = reward[~np.isnan(reward)]
    assert (seen >= min(row.reward for row in rows) - 1e-9).all()
    assert (seen <= max(row.reward for row in rows) + 1e-9).all()


def test_a_verdict_counts_where_every_source_is_off() -> None:
    tally = Tally(2).add("feedback", np.ones(2), np.ones(2)).add(VERDICT, np.zeros(2), np.full(2, 10.0))
    reward, counts = tally.reward(RewardConfig(feedback=0.0, labels=0.0))
    assert (reward.tolist(), counts.tolist()) == ([0.0, 0.0], [10.0, 10.0])


def test_rewards_of_texts_that_are_unlike_any_task_are_left_out_unless_they_name_one() -> None:
    posterior = np.array([0.5, 0.5])
    rows = [
        Given(1, 0, 0, "feedback", None, 1.0, posterior),
        Given(2, 0, 0, "feedback", None, 0.0, posterior, novel=True),
        Given(3, 0, 0, "feedback", 1, 0.0, posterior, novel=True),
    ]
    reward, counts = tallied(rows, posterior).reward(RewardConfig())
    assert (counts.tolist(), reward[0]) == ([0.5, 1.5], 1.0)


def test_every_model_is_credited_with_its_own_rewards_and_the_tallies_that_came_in_stay() -> None:
    before = [Tally(3), Tally(3).add("labels", np.ones(3), np.ones(3))]
    rows = said("a", 1.0, 4, place=0) + said("b", 0.0, 2, task=2, place=1)
    first, second = credited(before, rows, EVEN, Trust())
    assert first.parts["feedback"].tolist() == [[4, 0, 0], [4, 0, 0]]
    assert second.parts["feedback"].tolist() == [[0, 0, 0], [0, 0, 2]]
    assert [list(tally.parts) for tally in before] == [[], ["labels"]]


# --- clients ----------------------------------------------------------------------------------------------------------


def slot(rng: np.random.Generator, *, honest: int, liars: int, each: int = 6) -> list[Given]:
    """Rewards of a slot, right or wrong; liars turn theirs over."""
    rows = []
    for client in range(honest + liars):
        for _ in range(each):
            task = int(rng.integers(3))
            reward = float(rng.random() < TRUTH[task])
            rows += said(f"c{client}", 1 - reward if client >= honest else reward, task=task)
    return rows


@pytest.mark.parametrize(
    ("honest", "liars", "slots", "before"),
    [
        (9, 3, 40, 0),
        (16, 8, 20, 0),  # a sybil: many names of one liar, found out one by one
        (11, 1, 6, 50),  # a client that begins to lie loses its weight within a few slots
    ],
)
def test_honest_clients_keep_their_weight_and_liars_lose_it(honest: int, liars: int, slots: int, before: int) -> None:
    rng, trust = np.random.default_rng(1), Trust()
    for _ in range(before):
        trust = trust.learned(slot(rng, honest=honest + liars, liars=0), EVEN)
    assert [trust.of(f"c{n}") for n in range(honest + liars)] == [1.0] * (honest + liars)
    for _ in range(slots):
        trust = trust.learned(slot(rng, honest=honest, liars=liars), EVEN)
    assert min(trust.of(f"c{n}") for n in range(honest)) > 0.9
    assert max(trust.of(f"c{n}") for n in range(honest, honest + liars)) < 0.05


def test_one_client_counts_for_its_share_at_most_and_nobody_in_particular_counts_in_full() -> None:
    loud, others = said("loud", 0.0, 500), [row for n in range(40) for row in said(f"c{n}", 1.0, 2)]
    weights = Trust().weights(loud + others)
    assert weights[500:].tolist() == [1.0] * 80
    np.testing.assert_allclose(weights[:500].sum() / weights.sum(), 0.2, rtol=1e-6)
    for alone in ("", "only"):
        assert Trust().weights(said(alone, 0.0, 500)).tolist() == [1.0] * 500


def test_a_loud_liar_cannot_make_honest_clients_look_like_liars() -> None:
    trust = Trust()
    rows = said("loud", 0.0, 640) + [row for n in range(8) for row in said(f"c{n}", 1.0, 8)]
    for _ in range(3):
        trust = trust.learned(rows, np.ones(1))
    assert [trust.of(f"c{n}") for n in range(8)] == [1.0] * 8
    assert trust.of("loud") < 1e-6


def test_only_who_gives_most_of_what_counts_slot_after_slot_leads() -> None:
    trust = Trust()
    assert not trust.leads("app")  # a stranger, as everybody at first
    for number in range(20):
        trust = trust.learned(said("app", 1.0, 50) + (said("visitor", 1.0, 3) if number % 4 == 0 else []), np.ones(1))
    assert (trust.leads("app"), trust.leads("visitor"), trust.leads("stranger")) == (True, False, False)
    several = Trust()
    for _ in range(20):  # among nine, the loudest has a fifth of what counts
        rows = said("loud", 0.0, 999) + [row for n in range(8) for row in said(f"c{n}", 1.0, 8)]
        several = several.learned(rows, np.ones(1))
    assert not several.leads("loud")


def test_what_is_chosen_is_one_of_each_in_turn_and_of_none_more_than_its_share() -> None:
    rows = said("loud", 0.0, 900) + [row for n in range(8) for row in said(f"c{n}", 1.0, 10)]
    chosen = Counter(row.client for row in Trust().fair(rows, 1000))
    assert chosen == {"loud": 20} | {f"c{n}": 10 for n in range(8)}  # a fifth of all
    assert Counter(row.client for row in Trust().fair(rows, 18)) == dict.fromkeys(chosen, 2)
    assert len(Trust().fair(said("only", 0.0, 900), 256)) == 256
    assert Trust().fair([], 256) == []
