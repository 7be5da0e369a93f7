"""Recorded runs of every router. `python tests/golden/record.py` records them anew; say why in the commit."""

import json
from pathlib import Path

import numpy as np

from tanbr.lab.rivals import Nucb, RandomBlend, VectorGP
from tanbr.router import Tanbr, contract
from tanbr.router.config import RouterConfig
from tanbr.router.paper import PaperState
from tanbr.router.shell import AskTell
from tanbr.types import Decision, FloatArray

FOLDER = Path(__file__).parent
SLOTS = 50
EXACT = RouterConfig.model_validate({"paper": {"confidence": "exact", "rho": 0.9, "layers": 3, "width": 16}})
ROUTERS: dict[str, AskTell] = {
    "default": Tanbr(contract.K, contract.V, seed=5),
    "paper": Tanbr(contract.K, contract.V, mode="paper", seed=5),
    "paper-exact": Tanbr(contract.K, contract.V, mode="paper", seed=5, config=EXACT),
    "random": RandomBlend(contract.K, contract.V, seed=5),
    "nucb": Nucb(contract.K, contract.V, seed=5),
    "vector-gp": VectorGP(contract.K, contract.V, seed=5),
}


class Watched:
    """A router whose bounds are noted as it chooses."""

    def __init__(self, router: AskTell) -> None:
        self.router, self.tell, self.bounds = router, router.tell, list[float]()

    def ask(self, task_mix: FloatArray) -> Decision:
        """Choose."""
        decision = self.router.ask(task_mix)
        self.bounds.append(decision.why.bound)
        return decision


def record(router: AskTell) -> dict[str, list[object]]:
    """Blends, bounds and the depths of Algorithm 1's tree in a short run with unseen tasks."""
    watched = Watched(router)
    blends = contract.play(watched, SLOTS, seed=11, unseen=0.2)
    return {
        "blends": np.round(blends, 9).tolist(),
        "bounds": [None if np.isnan(bound) else round(bound, 9) for bound in watched.bounds],
        "depths": router.known.tree.depth.tolist() if isinstance(router.known, PaperState) else [],
    }


if __name__ == "__main__":
    for name, router in ROUTERS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(record(router)) + "\n")
