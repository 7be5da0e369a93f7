import numpy as np
from tanbr.serve.admission import Admission, Choice, KnownVersion, best_known, best_panel, panel_worth

from tanbr.serve.config import ServeConfig
from tanbr.serve.records import Reason
from tanbr.types import Decision

MIX = np.array([0.5, 0.5])
NEW = np.array([0.2, 0.8])
BOUND = 0.6  # of a router that believes every decision may earn as much


def known(version: int, reward: float, count: float = 50.0) -> KnownVersion:
    return KnownVersion(version, np.array([1.0, 0.0]), np.full(2, reward * count), np.full(2, count))


def admit(admission: Admission, decision: Decision, now: KnownVersion, versions: list[KnownVersion]) -> Choice:
    kept = Choice.one(now.blend, Reason.KEPT, version=now.version)
    return admission.admit(decision, BOUND, [now], versions, kept)


def test_a_panel_is_worth_what_each_task_earns_at_its_best_model() -> None:
    first = KnownVersion(1, np.array([1.0, 0.0]), np.array([45.0, 5.0]), np.full(2, 50.0))
    second = KnownVersion(2, np.array([0.0, 1.0]), np.array([0.0, 40.0]), np.array([0.0, 50.0]))
    assert panel_worth([first, second], MIX) == 0.5 * 0.9 + 0.5 * 0.8
    assert np.isnan(panel_worth([second], MIX))  # a task was never rewarded
    best = best_panel([first, second, known(3, 0.7)], MIX, 2)
    assert best is not None
    assert (best.versions, best.blends.tolist()) == ((1, 2), [[1.0, 0.0], [0.0, 1.0]])
    assert best_panel([second], MIX, 2) is None


def test_equal_blends_of_a_panel_are_one_model() -> None:
    blends, estimates = np.array([NEW, [1.0, 0.0], NEW]), np.array([[0.1, 0.5], [0.9, 0.2], [0.3, 0.4]])
    choice = Choice.of(Decision(0, MIX, blends, estimates))
    assert choice.blends.tolist() == blends[:2].tolist()
    assert choice.estimates is not None
    assert choice.estimates.tolist() == [[0.3, 0.5], [0.9, 0.2]]
    assert choice.mixes(MIX).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    alike = Choice.of(Decision(0, MIX, blends[[0, 2]], estimates[[0, 2]]))
    assert (alike.blends.tolist(), alike.estimates) == ([NEW.tolist()], None)


def test_a_merge_that_cannot_gain_enough_is_skipped() -> None:
    admission = Admission(ServeConfig(min_gain=0.05))
    decision = Decision(0, MIX, NEW)
    kept = admit(admission, decision, known(3, 0.58), [])
    assert (kept.decision, kept.version, kept.reason) == (None, 3, Reason.KEPT)
    assert "0.020" in kept.note
    assert admit(admission, decision, known(3, 0.5), []).decision is decision
    assert admit(admission, decision, known(3, 0.0, count=0.0), []).decision is decision  # unjudged


def test_the_exploration_budget_is_a_share_of_the_slots_and_the_best_known_blend_is_served_beyond_it() -> None:
    admission = Admission(ServeConfig.model_validate({"guard": {"exploration": 0.25}}))
    versions = [known(1, 0.4), known(2, 0.7), known(3, 0.9, count=0.0)]
    served = [admit(admission, Decision(i, MIX, NEW), versions[0], versions) for i in range(40)]
    assert sum(choice.decision is not None for choice in served) == 10
    assert {choice.version for choice in served if choice.reason is Reason.BEST} == {2}


def test_the_best_known_version_is_one_that_was_rewarded_for_every_task_of_the_mix() -> None:
    half = KnownVersion(4, NEW, np.array([45.0, 0.0]), np.array([50.0, 0.0]))
    best = best_known([known(1, 0.4), known(2, 0.7), half], MIX)
    assert best is not None
    assert best.version == 2
    assert best_known([half], MIX) is None
    assert best_known([half, known(1, 0.4)], np.array([1.0, 0.0])) is half
