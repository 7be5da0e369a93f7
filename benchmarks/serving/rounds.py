"""Contenders in turn, round after round: what each took, ratios inside a round, and the report of them."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tanbr.files import write_atomically


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


def report(found: Mapping[str, Any], out: Path | None) -> None:
    """Print what was found after the command that found it, and write it down where that is wanted."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    text = json.dumps({"command": command} | dict(found), indent=1)
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text + "\n")
