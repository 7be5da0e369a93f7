"""A router of your own is a class with `ask` and `tell`: here with ten lines, compared with tanbr on the same requests.

From the command line, in the folder of this file:  tanbr simulate --methods own_router:BestSoFar,tanbr,average
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import tanbr
from tanbr.lab.simulate import Study, simulate


# ruff: noqa: ARG002, D102 - a small router may leave things out
class BestSoFar:
    """Serves the blend that earned most in a slot, and in three slots of ten tries another."""

    def __init__(self, experts: int, tasks: int, seed: int = 0) -> None:
        self.rng, self.experts = np.random.default_rng(seed), experts
        self.best = 0.0, np.full(experts, 1 / experts)

    def ask(self, task_mix: np.ndarray) -> np.ndarray:
        return self.rng.dirichlet(np.ones(self.experts)) if self.rng.random() < 0.3 else self.best[1]

    def tell(self, decision: tanbr.Decision, reward: np.ndarray) -> None:
        self.best = max(self.best, (float(np.nanmean(reward)), decision.blend), key=lambda one: one[0])


def main(slots: int = 30) -> dict[str, float]:
    """Serve the embedded model's requests; the mean reward of each method."""
    sys.path.append(str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as out:
        names = ["own_router:BestSoFar", "tanbr", "average"]
        done = simulate(Study(tanbr.embedded(), slots=slots), names, [0], out=Path(out))
    earned = {one.method: float(np.mean([slot.total_reward for slot in one.records])) for one in done}
    for name, reward in earned.items():
        print(f"{name:22} {reward:.3f}")
    return earned


if __name__ == "__main__":
    main()
