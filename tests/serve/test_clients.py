import json
from collections import Counter

import numpy as np

from tanbr.serve.clients import Clients
from tanbr.serve.config import RewardConfig
from tanbr.serve.rewards import Tally
from tanbr.serve.rows import Given

TRUTH = np.array([0.85, 0.55, 0.25])  # reward of each task
EVEN = np.full(3, 1 / 3)


def slot(rng: np.random.Generator, *, honest: int, liars: int, each: int = 6) -> list[Given]:
    """Rewards of a slot, right or wrong; liars turn theirs over."""
    rows = []
    for client in range(honest + liars):
        for _ in range(each):
            task = int(rng.integers(3))
            reward = float(rng.random() < TRUTH[task])
            rows.append(Given(0, 0, "feedback", task, 1 - reward if client >= honest else reward, None, f"c{client}"))
    return rows


def mean_error(config: RewardConfig, *, slots: int = 60) -> float:
    """How far the rewards of the last half of the slots are off, on average, with a quarter of clients lying."""
    rng, clients, errors = np.random.default_rng(0), Clients(config), []
    for _ in range(slots):
        tally = Tally(3, config)
        tally.add_feedback(slot(rng, honest=12, liars=4), EVEN, clients, learn=True)
        errors.append(tally.reward[0] - TRUTH)
    return float(np.abs(np.mean(errors[slots // 2 :], axis=0)).mean())


def test_a_quarter_of_liars_bends_the_rewards_no_more() -> None:
    assert mean_error(RewardConfig(doubt=0.0, client_share=1.0)) > 0.08  # everybody is taken at his word
    assert mean_error(RewardConfig()) < 0.03


def test_honest_clients_keep_their_weight_and_liars_lose_it() -> None:
    rng, clients = np.random.default_rng(1), Clients(RewardConfig())
    for _ in range(40):
        rows = slot(rng, honest=9, liars=3)
        clients.learn(rows, np.eye(3)[[row.task or 0 for row in rows]])
    assert [clients.trust(f"c{n}") for n in range(9)] == [1.0] * 9
    assert max(clients.trust(f"c{n}") for n in range(9, 12)) < 0.01
    again = Clients(RewardConfig(), json.loads(json.dumps(clients.evidence)))
    assert again.trust("c11") == clients.trust("c11")


def test_one_client_counts_for_its_share_at_most_and_nobody_in_particular_counts_in_full() -> None:
    config = RewardConfig(client_share=0.2)
    loud = [Given(0, 0, "feedback", 0, 0.0, None, "loud")] * 500
    others = [Given(0, 0, "feedback", 0, 1.0, None, f"c{n}") for n in range(40) for _ in range(2)]
    weights = Clients(config).weights(loud + others)
    assert weights[500:].tolist() == [1.0] * 80
    np.testing.assert_allclose(weights[:500].sum() / weights.sum(), 0.2, rtol=1e-6)
    nameless = [Given(0, 0, "feedback", 0, 0.0, None, "")] * 500
    assert Clients(config).weights(nameless).tolist() == [1.0] * 500
    alone = [Given(0, 0, "feedback", 0, 0.0, None, "only")] * 500
    assert Clients(config).weights(alone).tolist() == [1.0] * 500


def said(client: str, reward: float, times: int) -> list[Given]:
    return [Given(0, 0, "feedback", 0, reward, None, client)] * times


def test_a_loud_liar_cannot_make_honest_clients_look_like_liars() -> None:
    clients = Clients(RewardConfig())
    rows = said("loud", 0.0, 640) + [row for n in range(8) for row in said(f"c{n}", 1.0, 8)]
    for _ in range(3):
        clients.learn(rows, np.ones((len(rows), 1)))
    assert [clients.trust(f"c{n}") for n in range(8)] == [1.0] * 8
    assert clients.trust("loud") < 1e-6


def test_only_who_gives_most_of_what_counts_slot_after_slot_leads() -> None:
    clients = Clients(RewardConfig())
    assert not clients.leads("app")  # a stranger, as everybody at first
    for slot in range(20):
        rows = said("app", 1.0, 50) + (said("visitor", 1.0, 3) if slot % 4 == 0 else [])
        clients.learn(rows, np.ones((len(rows), 1)))
    assert (clients.leads("app"), clients.leads("visitor"), clients.leads("stranger")) == (True, False, False)
    again = Clients(RewardConfig(), {}, json.loads(json.dumps(clients.led)))
    assert again.leads("app")
    several = Clients(RewardConfig())
    for _ in range(20):  # among nine, the loudest has a fifth of what counts
        rows = said("loud", 0.0, 999) + [row for n in range(8) for row in said(f"c{n}", 1.0, 8)]
        several.learn(rows, np.ones((len(rows), 1)))
    assert not several.leads("loud")


def test_what_is_chosen_is_one_of_each_in_turn_and_of_none_more_than_its_share() -> None:
    clients = Clients(RewardConfig())
    rows = said("loud", 0.0, 900) + [row for n in range(8) for row in said(f"c{n}", 1.0, 10)]
    chosen = Counter(row.client for row in clients.fair(rows, 1000))
    assert chosen == {"loud": 20} | {f"c{n}": 10 for n in range(8)}  # a fifth of all
    assert Counter(row.client for row in clients.fair(rows, 18)) == dict.fromkeys(chosen, 2)
    assert len(clients.fair(said("only", 0.0, 900), 256)) == 256
    assert clients.fair([], 256) == []
