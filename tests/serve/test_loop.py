from collections.abc import Sequence

import numpy as np

from tanbr.serve.loop import SlotLoop
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

    def swap(self, blend: FloatArray, *, slot: int) -> int:
        self.calls.append("swap")
        return 7

    def answer(self, texts: Sequence[Text]) -> FloatArray:
        self.calls.append("answer")
        return np.zeros((len(texts), 1))

    def observe(self, texts: Sequence[Text]) -> FloatArray:
        self.calls.append("observe")
        return np.zeros((len(texts), 3))

    def close_slot(self) -> SlotMix:
        self.calls.append("close")
        self.closed += 1
        mix = np.eye(3)[self.closed % 3]
        return SlotMix(mix, mix, np.zeros(3), 0.0, 1)


def test_a_slot_runs_in_order_and_the_forecast_is_asked_with_next() -> None:
    all_in_one = Recorder()
    loop = SlotLoop(engine=all_in_one, router=all_in_one, monitor=all_in_one, tasks=3)  # type: ignore[arg-type]
    reward, counts = np.array([0.5, np.nan, np.nan]), np.array([2.0, 0.0, 0.0])
    first = loop.run(["a", "b"], lambda said: (reward, counts))
    assert all_in_one.calls == ["ask", "swap", "answer", "observe", "tell", "close"]
    np.testing.assert_allclose(all_in_one.asked[0], 1 / 3)  # nothing seen yet
    second = loop.run(["c"], lambda said: (reward, counts))
    assert all_in_one.asked[1].tolist() == [0, 1, 0]
    assert [told[0] for told in all_in_one.told] == [1, 2]
    assert (first.slot, second.slot, first.merge_version) == (0, 1, 7)
    assert first.total_reward == 0.5
