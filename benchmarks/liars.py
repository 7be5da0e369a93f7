"""What clients that lie cost: honest reward of a router that is told their feedback, weighed by client or not.

    python benchmarks/liars.py [--seeds 4]

No model runs: blends earn what the embedded model's survey says of the nearest ones; rewards are right or wrong.
"""

import argparse

import numpy as np
from sklearn.neighbors import KNeighborsRegressor

from tanbr.lab.tasks import traffic
from tanbr.loop.config import RewardConfig
from tanbr.loop.rewards import Given, Tally, Trust, credited
from tanbr.moe import embedded
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.serve.survey import Survey

K = V = 8
SLOTS, CLIENTS, EACH = 150, 32, 4
WORD, WEIGHED = RewardConfig(doubt=0.0, client_share=1.0), RewardConfig()


def honest_reward(liars: float, config: RewardConfig, *, seed: int, truth: KNeighborsRegressor) -> float:
    """Mean reward of the second half of the slots, when a share of the clients turn their rewards over."""
    rng = np.random.default_rng(seed)
    router = Tanbr(K, V, seed=seed, config=RouterConfig().of_requests(tuple(range(V))))
    trust, earned = Trust(config.doubt, config.client_share), list[float]()
    for mix in traffic.mixes("dirichlet", tasks=V, slots=SLOTS, seed=seed, alpha=0.3):
        decision = router.ask(mix)
        rewards = truth.predict(decision.blend[None])[0]  # (V,)
        earned.append(float(mix @ rewards))
        rows = []
        for client in range(CLIENTS):
            for task in rng.choice(V, p=mix, size=EACH).tolist():
                right = float(rng.random() < rewards[task])
                said = 1 - right if client < liars * CLIENTS else right
                rows.append(Given(0, 0, 0, "feedback", task, said, None, f"client {client}"))
        trust = trust.learned(rows, mix)
        (tally,) = credited([Tally(V)], rows, mix, trust)
        router.tell(decision, *tally.reward(config))
    return float(np.mean(earned[SLOTS // 2 :]))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    seeds = parser.parse_args().seeds
    known = Survey.load(embedded.path() / "survey.json")
    truth = KNeighborsRegressor(4, weights="distance").fit(known.blends, known.rewards)
    for liars in (0.0, 0.25):
        for name, config in (("at their word", WORD), ("weighed", WEIGHED)):
            rewards = [honest_reward(liars, config, seed=seed, truth=truth) for seed in range(seeds)]
            print(f"{liars:.0%} lie, {name}: {np.mean(rewards):.3f}", flush=True)


if __name__ == "__main__":
    main()
