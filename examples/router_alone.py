"""The router by itself, on a reward that only it does not know: no model, no torch.

Three experts, two tasks. Task 0 is served best by a blend near (0.7, 0.3, 0), task 1 by expert 2 alone. The mix of the
two drifts; after some twenty slots the router earns nearly what somebody who knew the reward would.
"""

import numpy as np

import tanbr

PEAKS = np.array([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]])  # (V, K)


def reward(blend: np.ndarray) -> np.ndarray:
    """Reward of each task (V,): 0.9 at its peak, less the farther the blend is from it."""
    return 0.9 - 0.6 * np.linalg.norm(PEAKS - blend, axis=1) ** 2


def main(slots: int = 60) -> float:
    """Run the slots; what was earned in the last third, as a share of the best that could be."""
    rng = np.random.default_rng(0)
    simplex = rng.dirichlet(np.ones(3), size=20_000)
    worth = np.array([reward(blend) for blend in simplex])  # (n, V): to know the best afterwards
    router = tanbr.Tanbr(experts=3, tasks=2, seed=0)
    earned, best = [], []
    for slot in range(slots):
        share = 0.5 + 0.4 * np.sin(slot / 8)
        mix = np.array([share, 1 - share])
        decision = router.ask(mix)
        seen = np.clip(reward(decision.blend) + rng.normal(scale=0.02, size=2), 0, 1)
        router.tell(decision, seen)
        earned.append(mix @ reward(decision.blend))
        best.append((worth @ mix).max())
        if slot % 10 == 0:
            blend = decision.blend.round(2)
            print(f"slot {slot:2}  mix {mix.round(2)}  blend {blend}  {earned[-1]:.3f} of {best[-1]:.3f}")
    share = float(np.mean(earned[-slots // 3 :]) / np.mean(best[-slots // 3 :]))
    print(f"last third: {share:.1%} of the best")
    return share


if __name__ == "__main__":
    main()
