"""Practice: what logged requests say of other answers, what is tried on them, and what a router makes of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanbr.loop.practice import (
    ALONE,
    FEW,
    FIRST,
    LOG,
    READY,
    UNLIKELY,
    Exercise,
    Logged,
    Practice,
    decides,
    known_rewards,
)  # fmt: skip
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Task
from tanbr.types import FloatArray

YESNO = Task("yesno", ("accuracy",), ("no", "yes"))
THREE = Task("three", ("accuracy",), ("a", "b", "c"))
GRADED = Task("graded", ("pearson",), scale=(0.0, 5.0))
SPACE = LabelSpace((YESNO, THREE, GRADED))  # columns: no, yes, a, b, c, graded
K = V = 4


def row(number: int, task: int, *, reward: float = 1.0, answer: float = 0.0, label: float | None = None) -> Logged:
    return Logged(number.to_bytes(8, "big"), f"text {number}", task, np.eye(V)[task], reward, answer, label)


def logits(column: str) -> FloatArray:
    return 9.0 * np.array([name == column for name in SPACE.columns])


@pytest.mark.parametrize(
    ("task", "reward", "answer", "label", "other", "earned"),
    [
        (1, 0.0, 0, 2.0, "c", 1.0),  # with a label, any answer has a known reward
        (1, 1.0, 2, 2.0, "a", 0.0),
        (0, 1.0, 1, None, "yes", 1.0),  # the answer that was given has its reward
        (0, 1.0, 1, None, "no", 0.0),  # one right answer makes the others wrong
        (0, 0.0, 1, None, "no", 1.0),  # of two labels a wrong one makes the other right
        (1, 0.0, 0, None, "a", 0.0),
        (1, 0.0, 0, None, "b", 0.5),  # of three it leaves two
        (1, 0.0, -1, None, "b", 1 / 3),  # an answer of another task says nothing of this one's labels
        (1, 0.0, 0, None, "yes", 0.0),  # which another task's words never are
    ],
)  # fmt: skip
def test_what_another_answer_would_have_earned(
    task: int, reward: float, answer: float, label: float | None, other: str, earned: float
) -> None:
    one = row(1, task, reward=reward, answer=answer, label=label)
    rewards, chances = known_rewards(SPACE, [one], [logits(other)], by_posterior=False)
    assert rewards[0] == pytest.approx(earned)
    if other in SPACE.tasks[task].labels:
        assert chances[0] == pytest.approx(earned, abs=0.001)  # the answer is sure, so what may be is what is


def test_a_head_that_is_not_sure_may_be_right() -> None:
    one, unsure = row(1, 1, label=2.0), np.log([0.9, 0.9, 0.2, 0.5, 0.3, 1.0])  # other tasks' columns do not count
    rewards, chances = known_rewards(SPACE, [one], [unsure], by_posterior=False)
    assert (rewards[0], chances[0]) == (0.0, pytest.approx(0.3))
    graded = replace(row(2, 2, label=4.0), posterior=np.eye(3)[2])
    found = known_rewards(SPACE, [graded], [np.full(6, 3.0)], by_posterior=False)[:, 0]
    assert found[0] == found[1] > 0


def test_only_requests_that_decide_are_logged() -> None:
    assert decides(GRADED, 0.7, 3.0)
    assert not decides(GRADED, 0.7, None)  # how near another score would have been nobody knows
    assert not decides(YESNO, 0.7, None)
    assert decides(YESNO, 0.0, None)


@given(st.lists(st.integers(0, V - 1), max_size=6 * LOG))
def test_the_log_never_outgrows_its_bound(tasks: list[int]) -> None:
    practice = Practice(K, V)
    for start in range(0, len(tasks), 64):
        practice = practice.logged([row(start + i, task) for i, task in enumerate(tasks[start : start + 64])])
    held = np.bincount(practice.of, minlength=V)
    np.testing.assert_array_equal(held, np.minimum(np.bincount(tasks, minlength=V), LOG))
    assert practice.table.size == len(practice.rows) * (K + 2)


def map_of(blend: FloatArray) -> FloatArray:
    """Each task earns .3 without its expert (V,) and .9 with it alone; experts are turned by one: task v has v + 1."""
    own = np.roll(blend, -1)
    return 0.3 + 0.6 * own * 1.3 / (own + 0.3)


def practised(router: Tanbr, *, slots: int, card: tuple[int, ...] = ()) -> Practice:
    """Play slots of all tasks alike, each followed by some exercises, on rows that are as hard for every blend."""
    rng, number = np.random.default_rng(0), 0
    practice = Practice(K, V, believed=np.eye(K)[list(card)] if card else None)
    hard: dict[bytes, float] = {}

    def earned(blend: FloatArray, rows: tuple[Logged, ...]) -> FloatArray:
        worth = map_of(blend)
        return np.array([float(hard[one.id] < worth[one.task]) for one in rows])

    even = np.full(V, 1 / V)
    for slot in range(slots):
        blend = router.ask(even).blends[0]
        new = []
        for _ in range(32):
            number += 1
            one = row(number, int(rng.integers(V)), label=0.0)
            hard[one.id] = rng.random()
            new.append(replace(one, blend=blend, reward=float(earned(blend, (one,))[0])))
        practice = practice.logged(new)
        for _ in range(4):
            wanted = practice.next(router, even)
            assert wanted is not None
            found = np.tile(earned(wanted.blend, wanted.rows), (2, 1))
            practice = practice.learned(wanted, found, router=router, slot=slot)
    return practice


@pytest.mark.parametrize("card", [(), (0, 1, 2, 3), (1, 2, 3, 0)], ids=["no card", "a lying card", "a true card"])
def test_practice_finds_each_tasks_expert_whatever_the_card_says(card: tuple[int, ...]) -> None:
    router = Tanbr(K, V, config=RouterConfig().of_requests(card))
    practice = practised(router, slots=30, card=card)
    assert router.own_experts.tolist() == [1, 2, 3, 0]
    mean, error, counts = practice.experts_alone()
    assert mean.argmax(axis=1).tolist() == [1, 2, 3, 0]
    assert (counts >= FEW).all()
    true = np.array([map_of(alone) for alone in np.eye(K)]).T  # (V, K)
    assert (np.abs(mean - true) < 5 * error).all()
    for task, expert in enumerate((1, 2, 3, 0)):  # and what is served follows it
        served = router.ask(np.where(np.arange(V) == task, 0.97, 0.01)).blends[0]
        assert served.argmax() == expert
        assert map_of(served)[task] > 0.75


def test_nothing_is_tried_on_users_once_there_is_practice() -> None:
    router = Tanbr(K, V, config=RouterConfig().of_requests(()))
    before = router.ask(np.full(V, 1 / V))
    router.tell(before, np.full(V, 0.5), np.full(V, 8.0))
    practised(router, slots=READY // 4)
    decision = router.ask(np.full(V, 1 / V))
    assert decision.why.uncertainty <= 0.0  # no optimism, but doubt
    router.tell(decision, np.zeros(V), np.full(V, 64.0))  # what is served teaches nothing by itself
    router.warm_start(np.eye(K), np.ones((K, V)), np.full((K, V), 64.0))  # nor what came late, or was held back
    again = router.ask(np.full(V, 1 / V))
    np.testing.assert_array_equal(again.blends, decision.blends)


def test_what_is_served_teaches_until_enough_was_practised() -> None:
    router = Tanbr(K, V, config=RouterConfig().of_requests(()))
    practice = practised(router, slots=READY // 4 - 1)
    assert not router.known.practised  # a server without time to practise goes on as if there were none
    decision = router.ask(np.full(V, 1 / V))
    router.tell(decision, np.full(V, 0.5), np.full(V, 8.0))
    assert len(router.known.posterior.arms) > 0
    told = len(practice.untold)
    for _ in range(4):
        wanted = practice.next(router, np.full(V, 1 / V))
        assert wanted is not None
        practice = practice.learned(wanted, np.ones((2, len(wanted.rows))), router=router, slot=9)
    assert router.known.practised
    assert told > 0
    assert practice.untold == ()


def test_first_the_even_blend_then_experts_alone_then_what_is_suggested() -> None:
    router = Tanbr(K, V, config=RouterConfig().of_requests(()))
    practice = Practice(K, V)
    practice = practice.logged([row(i, i % V, label=0.0) for i in range(V * ALONE)])
    seen = []
    for _ in range(60):
        wanted = practice.next(router, np.full(V, 1 / V))
        assert wanted is not None
        seen.append(wanted.why)
        practice = practice.learned(wanted, np.ones((2, len(wanted.rows))), router=router, slot=0)
    order = list(dict.fromkeys(why.split()[0] for why in seen))
    assert order == ["the", "an", "what"]  # the even blend, an expert alone, what would be served
    assert seen.count("an expert alone") >= K


def test_experts_that_are_surely_not_the_best_are_asked_no_more() -> None:
    router, worth = Tanbr(K, V, config=RouterConfig().of_requests(())), np.array([0.8, 0.795, 0.1, 0.1])
    practice = Practice(K, V).logged([row(i, i % V, label=0.0) for i in range(V * LOG)])
    for _ in range(150):
        wanted = practice.next(router, np.full(V, 1 / V))
        earned = np.full((2, len(wanted.rows)), worth @ wanted.blend)
        practice = practice.learned(wanted, earned, router=router, slot=0)
    asked = np.isfinite(practice.table[:, :K])
    of_tasks = np.array([asked[practice.of == task].sum(axis=0) for task in range(V)])
    assert (of_tasks[:, 2:] == FIRST).all()
    assert (of_tasks[:, :2] == ALONE).all()
    assert (practice.best[:, 2:] < UNLIKELY).all()
    np.testing.assert_allclose(practice.best.sum(axis=1), 1.0)


def test_an_empty_log_knows_nothing() -> None:
    practice = Practice(K, V)
    assert np.isnan(practice.experts_alone()[0]).all()
    np.testing.assert_allclose(practice.best, 1 / (K + 1))
    np.testing.assert_allclose(practice.own_experts(), 1 / K)


def test_rows_that_have_left_the_log_are_passed_over() -> None:
    router = Tanbr(K, V, config=RouterConfig().of_requests(()))
    practice = Practice(K, V).logged([row(1, 0), row(2, 1)])
    gone = Exercise(np.eye(K)[0], (row(7, 0), row(8, 1)), "expert 0 alone", 0)
    after = practice.learned(gone, np.ones((2, 2)), router=router, slot=0)
    assert after.done == 1
    assert np.isnan(after.table).all()
