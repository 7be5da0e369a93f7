"""What learning costs before it pays: how far a method is above others in its first slots, from a run of simulate.

    python benchmarks/first_slots.py OUT --method tanbr+regression --rivals regmean,average --slots 50

OUT is the folder that `tanbr simulate --out` named. Points on the same requests: mean over seeds, half of Student's
95% interval over them, and the lowest seed.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy import stats

from tanbr.experiments.simulate import Outcome, place
from tanbr.types import FloatArray


def rewards(out: Path, seed: int, method: str) -> FloatArray:
    """Mean reward of every slot: (T,)."""
    return np.array([record.total_reward for record in Outcome.load(place(out, seed, method)).records])


def lead(out: Path, seeds: list[int], method: str, rival: str, slots: slice) -> FloatArray:
    """Points of a method above a rival in some slots, seed by seed."""
    return np.array([100 * (rewards(out, s, method) - rewards(out, s, rival))[slots].mean() for s in seeds])


def main() -> None:
    """Print one line per rival, of the first slots and of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", default="tanbr+regression")
    parser.add_argument("--rivals", default="regmean,average")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--slots", type=int, default=50)
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    for rival in options.rivals.split(","):
        for name, slots in ((f"first {options.slots}", slice(options.slots)), ("all", slice(None))):
            points = lead(options.out, seeds, options.method, rival, slots)
            half = stats.t.ppf(0.975, len(points) - 1) * points.std(ddof=1) / np.sqrt(len(points))
            print(f"above {rival}, {name} slots: {points.mean():+.1f} ± {half:.1f}, lowest {points.min():+.1f}")


if __name__ == "__main__":
    main()
