"""Recorded runs of every router. `python tests/golden/record.py` records them anew; say why in the commit."""

import json
from pathlib import Path

import numpy as np

from tanbr.lab.rivals import Nucb, RandomBlend, VectorGP
from tanbr.router import Tanbr
from tanbr.router import contract as toy
from tanbr.router.config import RouterConfig
from tanbr.router.shell import AskTell

FOLDER = Path(__file__).parent
SLOTS = 50
EXACT = RouterConfig.model_validate({"paper": {"confidence": "exact", "rho": 0.9, "layers": 3, "width": 16}})
ROUTERS: dict[str, AskTell] = {
    "default": Tanbr(toy.K, toy.V, seed=5),
    "paper": Tanbr(toy.K, toy.V, mode="paper", seed=5),
    "paper-exact": Tanbr(toy.K, toy.V, mode="paper", seed=5, config=EXACT),
    "random": RandomBlend(toy.K, toy.V, seed=5),
    "nucb": Nucb(toy.K, toy.V, seed=5),
    "vector-gp": VectorGP(toy.K, toy.V, seed=5),
}


def record(router: AskTell) -> dict[str, list[object]]:
    """Blends, bounds and the tree's depths of a short run with unseen tasks."""
    blends = toy.play(router, SLOTS, seed=11, unseen=0.2)
    bounds = [told.decision.why.bound for told in router.history]
    return {
        "blends": np.round(blends, 9).tolist(),
        "bounds": [None if np.isnan(bound) else round(bound, 9) for bound in bounds],
        "depths": router.tree.depth.tolist(),
    }


if __name__ == "__main__":
    for name, router in ROUTERS.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(record(router)) + "\n")
