import numpy as np

from tanbr.router import Terms
from tanbr.serve.config import ServeConfig
from tanbr.serve.gate import Gate, Standing
from tanbr.types import Decision

MIX = np.array([0.5, 0.5])
NEW = np.array([0.2, 0.8])


class Believer:
    """Believes that every decision may earn 0.6."""

    def explain(self, decision: Decision) -> Terms:
        return Terms(mean=0.5, uncertainty=0.1)


def standing(version: int, reward: float, count: float = 50.0) -> Standing:
    return Standing(version, np.array([1.0, 0.0]), np.full(2, reward * count), np.full(2, count))


def test_a_merge_that_cannot_gain_enough_is_skipped() -> None:
    gate = Gate(ServeConfig(min_gain=0.05))
    decision = Decision(0, MIX, NEW)
    kept = gate.admit(decision, Believer(), standing(3, 0.58), [])  # type: ignore[arg-type]
    assert kept.decision is None
    assert kept.instead is not None
    assert kept.instead.version == 3
    assert "0.020" in kept.note
    assert gate.admit(decision, Believer(), standing(3, 0.5), []).decision is decision  # type: ignore[arg-type]
    unjudged = standing(3, 0.0, count=0.0)
    assert gate.admit(decision, Believer(), unjudged, []).decision is decision  # type: ignore[arg-type]


def test_the_exploration_budget_is_a_share_of_the_slots_and_the_best_known_blend_is_served_beyond_it() -> None:
    gate = Gate(ServeConfig.model_validate({"guard": {"exploration": 0.25}}))
    known = [standing(1, 0.4), standing(2, 0.7), standing(3, 0.9, count=0.0)]
    served = [gate.admit(Decision(i, MIX, NEW), Believer(), known[0], known) for i in range(40)]  # type: ignore[arg-type]
    assert sum(admitted.decision is not None for admitted in served) == 10
    assert {admitted.instead.version for admitted in served if admitted.instead is not None} == {2}
