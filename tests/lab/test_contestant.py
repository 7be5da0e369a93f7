from collections.abc import Sequence

import numpy as np

from tanbr.lab.compare import KnownMix, KnownTasks
from tanbr.lab.contestant import OneModel, Scorer
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.tasks.rows import Row, Task
from tanbr.types import Decision, FloatArray, SlotMix, Text, as_blend


class Recorder:
    """A router, monitor and engine in one that writes down what is called, with what."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked: list[FloatArray] = []
        self.told: list[tuple[int, list[float]]] = []
        self.closed = 0

    def ask(self, task_mix: FloatArray) -> Decision:
        self.calls.append("ask")
        self.asked.append(np.asarray(task_mix))
        return Decision(len(self.asked), np.asarray(task_mix), as_blend([0.25, 0.75], experts=2))

    def tell(self, decision: Decision, reward: FloatArray, counts: FloatArray) -> None:
        self.calls.append("tell")
        self.told.append((decision.id, reward.tolist()))

    def swap(self, blend: FloatArray) -> int:
        self.calls.append("swap")
        return 7

    def answers(self, texts: Sequence[Text]) -> list[FloatArray]:
        self.calls.append("answer")
        return [np.array([1.0, 0.0])] * len(texts)

    def observe(self, texts: Sequence[Text]) -> FloatArray:
        self.calls.append("observe")
        return np.zeros((len(texts), 3))

    def close_slot(self) -> SlotMix:
        self.calls.append("close")
        self.closed += 1
        mix = np.eye(3)[self.closed % 3]
        return SlotMix(mix, mix, np.zeros(3), 0.0, 1)


TASKS = tuple(Task(name, ("accuracy",), ("no", "yes")) for name in ("a", "b", "c"))


def scorer(*targets: float) -> Scorer:
    return Scorer(LabelSpace(TASKS), [Row("a", "text", target) for target in targets])


def test_a_slot_runs_in_order_and_the_forecast_is_asked_with_next() -> None:
    all_in_one = Recorder()
    contestant = OneModel(server=all_in_one, router=all_in_one, monitor=all_in_one, tasks=3)  # type: ignore[arg-type]
    first = contestant.play(["a", "b"], scorer(0, 1))  # "no" is answered: one is right
    assert all_in_one.calls == ["ask", "swap", "observe", "answer", "tell", "close"]
    np.testing.assert_allclose(all_in_one.asked[0], 1 / 3)  # nothing seen yet
    second = contestant.play(["c"], scorer(0))
    assert all_in_one.asked[1].tolist() == [0, 1, 0]
    assert [told[0] for told in all_in_one.told] == [1, 2]
    assert (first.slot, second.slot, first.merge_version) == (0, 1, 7)
    assert first.reward[0] == 0.5
    assert np.isnan(first.reward[1:]).all()
    assert first.counts.tolist() == [2, 0, 0]


def test_a_scorer_shows_what_was_answered_and_averages_a_part() -> None:
    heard: list[FloatArray] = []
    space, rows = LabelSpace(TASKS), [Row("a", "text", 0.0), Row("b", "text", 1.0)]
    one = Scorer(space, rows, collect=lambda _, meant: heard.append(meant))
    rewards = one.rewards([np.array([1.0, 0.0])] * 2)
    assert rewards.tolist() == [1.0, 0.0]
    assert len(heard[0]) == 2
    reward, counts = one.by_task(rewards, among=np.array([False, True]))
    assert counts.tolist() == [0, 1, 0]
    assert reward[1] == 0.0


def test_answers_may_use_the_posterior_under_the_slot_s_mix() -> None:
    """What is made of the answers hears the posteriors, re-weighted by the mix that is forecast."""
    all_in_one, heard = Recorder(), []

    def opposite(answers: Sequence[Answer], posteriors: FloatArray) -> list[Answer]:
        heard.append(posteriors)
        return [np.array([0.0, 1.0])] * len(answers)

    even = np.full((2, 3), 1 / 3)
    all_in_one.observe = lambda texts: even[: len(texts)]  # type: ignore[method-assign]
    contestant = OneModel(all_in_one, all_in_one, all_in_one, 3, answering=opposite)  # type: ignore[arg-type]
    assert contestant.play(["a", "b"], scorer(1, 1)).reward[0] == 1.0  # "yes" is answered now
    contestant.play(["c"], scorer(1))
    np.testing.assert_allclose(heard[0], even)
    assert heard[1].argmax(axis=1).tolist() == [1]  # the forecast mix is all of task b


def test_a_known_mix_forecasts_the_next_slot() -> None:
    source = KnownMix(np.eye(3))
    assert source.close_slot().forecast.tolist() == [0, 1, 0]
    assert source.close_slot().forecast.tolist() == [0, 0, 1]
    assert source.close_slot().forecast.tolist() == [0, 0, 1]


def test_known_tasks_are_sure_and_the_mix_is_another_s() -> None:
    source = KnownTasks({"one": 0, "two": 2}, KnownMix(np.eye(3)), tasks=3)
    assert source.observe(["two", "one"]).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert source.close_slot().forecast.tolist() == [0, 1, 0]
