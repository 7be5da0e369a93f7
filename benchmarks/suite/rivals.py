"""The routers of the study, by name; HCT only where PyXAB is installed."""

import importlib.util
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from suite.run import Scenario
from tanbr.lab.rivals import Nucb, RandomBlend, VectorGP
from tanbr.router import Tanbr
from tanbr.router.config import PaperModeConfig, RouterConfig
from tanbr.types import Decision, Router

SEED = 1000  # added to a scenario's seed: routers and maps never share one
OTHER_PAPER = {"rho": 0.9, "loss": "mean", "learning_rate": 0.01, "representative": "proportional"}
OTHER_NUCB = {"loss": "mean", "learning_rate": 0.01, "memory": 1000, "exploration": 0.3}


def _sizes(scenario: Scenario) -> tuple[int, int]:
    return scenario.experts, scenario.tasks


def default(**settings: object) -> Callable[[Scenario], Router]:
    """Make the default mode, with settings changed."""
    config = RouterConfig.model_validate({"default": settings})
    return lambda s: Tanbr(*_sizes(s), max_active=s.max_active, seed=SEED + s.seed, config=config)


def paper(**settings: object) -> Callable[[Scenario], Router]:
    """Algorithm 1, with settings changed."""
    config = RouterConfig.model_validate({"paper": settings})
    return lambda s: Tanbr(*_sizes(s), max_active=s.max_active, mode="paper", seed=SEED + s.seed, config=config)


def nucb(scenario: Scenario) -> Router:
    """Make NUCB with the mean loss, a larger step and less exploration, picked by hand."""
    config = PaperModeConfig.model_validate(OTHER_NUCB)
    return Nucb(*_sizes(scenario), max_active=scenario.max_active, seed=SEED + scenario.seed, config=config)


class Hct:
    """High-confidence tree search from PyXAB on [0, 1]^K, each point scaled to the simplex; it sees only ψᵀr."""

    def __init__(self, scenario: Scenario) -> None:
        from PyXAB.algos.HCT import HCT
        from PyXAB.partition.BinaryPartition import BinaryPartition

        np.random.seed(SEED + scenario.seed)  # noqa: NPY002 (PyXAB draws from the global generator)
        domain = [[1e-3, 1.0]] * scenario.experts
        self._hct, self._slot = HCT(domain=domain, partition=BinaryPartition), 0

    def ask(self, task_mix: ArrayLike, *, models: int = 1, confusion: ArrayLike | None = None) -> Decision:  # noqa: ARG002
        """Pull an arm."""
        self._slot += 1
        point = np.array(self._hct.pull(self._slot), dtype=np.float64)
        return Decision(self._slot, np.asarray(task_mix, dtype=np.float64), point / point.sum())

    def tell(self, decision: Decision | int, reward: ArrayLike, counts: ArrayLike | None = None) -> None:  # noqa: ARG002
        """Hand the total reward back; unseen tasks are left out of it."""
        assert isinstance(decision, Decision)
        r = np.asarray(reward, dtype=np.float64)
        seen = ~np.isnan(r)
        total = float(np.average(r[seen], weights=decision.task_mix[seen] + 1e-12)) if seen.any() else 0.5
        self._hct.receive_reward(self._slot, total)


RIVALS: dict[str, Callable[[Scenario], Router]] = {
    "random": lambda s: RandomBlend(*_sizes(s), max_active=s.max_active, seed=SEED + s.seed),
    "Alg. 1 as printed": paper(),
    "Alg. 1, other settings": paper(**OTHER_PAPER),
    "NUCB": nucb,
    "vector GP": lambda s: VectorGP(*_sizes(s), max_active=s.max_active, seed=SEED + s.seed),
    "tanbr without tree": default(room=0),
    "tanbr": default(),
}
if importlib.util.find_spec("PyXAB"):
    RIVALS = {"random": RIVALS["random"], "HCT (PyXAB)": Hct, **RIVALS}
