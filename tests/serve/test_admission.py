import numpy as np

from tanbr.router import Terms
from tanbr.serve.admission import Admission, KnownVersion, best_known
from tanbr.serve.config import ServeConfig
from tanbr.serve.records import Reason
from tanbr.types import Decision

MIX = np.array([0.5, 0.5])
NEW = np.array([0.2, 0.8])
TERMS = Terms(mean=0.5, uncertainty=0.1)  # of a router that believes every decision may earn 0.6


def known(version: int, reward: float, count: float = 50.0) -> KnownVersion:
    return KnownVersion(version, np.array([1.0, 0.0]), np.full(2, reward * count), np.full(2, count))


def test_a_merge_that_cannot_gain_enough_is_skipped() -> None:
    admission = Admission(ServeConfig(min_gain=0.05))
    decision = Decision(0, MIX, NEW)
    kept = admission.admit(decision, TERMS, known(3, 0.58), [])
    assert (kept.decision, kept.version, kept.reason) == (None, 3, Reason.KEPT)
    assert "0.020" in kept.note
    assert admission.admit(decision, TERMS, known(3, 0.5), []).decision is decision
    assert admission.admit(decision, TERMS, known(3, 0.0, count=0.0), []).decision is decision  # unjudged


def test_the_exploration_budget_is_a_share_of_the_slots_and_the_best_known_blend_is_served_beyond_it() -> None:
    admission = Admission(ServeConfig.model_validate({"guard": {"exploration": 0.25}}))
    versions = [known(1, 0.4), known(2, 0.7), known(3, 0.9, count=0.0)]
    served = [admission.admit(Decision(i, MIX, NEW), TERMS, versions[0], versions) for i in range(40)]
    assert sum(choice.decision is not None for choice in served) == 10
    assert {choice.version for choice in served if choice.reason is Reason.BEST} == {2}


def test_the_best_known_version_is_one_that_was_rewarded_for_every_task_of_the_mix() -> None:
    half = KnownVersion(4, NEW, np.array([45.0, 0.0]), np.array([50.0, 0.0]))
    best = best_known([known(1, 0.4), known(2, 0.7), half], MIX)
    assert best is not None
    assert best.version == 2
    assert best_known([half], MIX) is None
    assert best_known([half, known(1, 0.4)], np.array([1.0, 0.0])) is half
