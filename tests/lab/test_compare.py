import numpy as np

from tanbr.lab.compare import KnownMix, KnownTasks


def test_a_known_mix_forecasts_the_next_slot() -> None:
    source = KnownMix(np.eye(3))
    assert source.close_slot().forecast.tolist() == [0, 1, 0]
    assert source.close_slot().forecast.tolist() == [0, 0, 1]
    assert source.close_slot().forecast.tolist() == [0, 0, 1]


def test_known_tasks_are_sure_and_the_mix_is_another_s() -> None:
    source = KnownTasks({"one": 0, "two": 2}, KnownMix(np.eye(3)), tasks=3)
    assert source.observe(["two", "one"]).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert source.close_slot().forecast.tolist() == [0, 1, 0]
