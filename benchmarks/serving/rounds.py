"""Contenders in turn, round after round: what each took, and ratios inside a round."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratios(mine: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Median and range of the ratios round by round."""
    return spread([one / two for one, two in zip(mine, other, strict=True)])


def in_turn(
    contenders: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warm: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Run all contenders in each round, so that a busy machine slows all alike: the seconds of each (rounds,)."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm + rounds):
        for name, run in contenders.items():
            started = clock()
            run()
            seconds[name] += [clock() - started] if number >= warm else []
    return seconds
