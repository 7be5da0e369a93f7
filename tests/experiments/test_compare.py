import numpy as np

from tanbr.experiments.compare import KnownMix


def test_a_known_mix_forecasts_the_next_slot() -> None:
    source = KnownMix(np.eye(3))
    assert source.close_slot().forecast.tolist() == [0, 1, 0]
    assert source.close_slot().forecast.tolist() == [0, 0, 1]
    assert source.close_slot().forecast.tolist() == [0, 0, 1]
