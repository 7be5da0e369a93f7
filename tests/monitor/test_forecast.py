"""The forecast follows a switch within two slots, hurries after a drift, and does not jitter."""

import numpy as np
import pytest

from tanbr.monitor.forecast import Forecast
from tanbr.monitor.slot import Prevalence

OLD, NEW = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.2, 0.7])


def seen(mix: np.ndarray, requests: int, rng: np.random.Generator) -> Prevalence:
    drawn = rng.multinomial(requests, mix) / requests
    return Prevalence(drawn, np.sqrt((mix * (1 - mix) + 0.01) / requests))


def run(mixes: list[np.ndarray], requests: int, seed: int = 0) -> tuple[np.ndarray, list[bool]]:
    rng = np.random.default_rng(seed)
    forecast = Forecast.start(3)
    resets, forecasts = [], []
    for mix in mixes:
        forecast = forecast.after(seen(mix, requests, rng))
        resets.append(forecast.age == 1)
        forecasts.append(forecast.mix)
    return np.array(forecasts), resets


@pytest.mark.parametrize("requests", [64, 256, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_a_switch_is_followed_at_once_and_nothing_else_is_taken_for_one(requests: int, seed: int) -> None:
    forecasts, resets = run([OLD] * 20 + [NEW] * 20, requests, seed)
    assert [slot for slot, reset in enumerate(resets) if reset] == [0, 20]
    assert np.abs(forecasts[21] - NEW).sum() < 0.3


def test_a_steady_mix_is_steadier_than_its_slots() -> None:
    late = slice(20, None)
    errors, moves = [], []
    for seed in range(10):
        forecasts, _ = run([OLD] * 60, 64, seed)
        rng = np.random.default_rng(seed)
        slots = np.array([seen(OLD, 64, rng).mix for _ in range(60)])
        errors.append([np.abs(mixes[late] - OLD).sum(axis=1).mean() for mixes in (forecasts, slots)])
        moves.append([np.abs(np.diff(mixes[late], axis=0)).sum(axis=1).mean() for mixes in (forecasts, slots)])
    error, slot_error = np.mean(errors, axis=0)
    move, slot_move = np.mean(moves, axis=0)
    assert error < 0.5 * slot_error
    assert move < 0.25 * slot_move
