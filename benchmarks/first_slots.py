"""What learning costs before it pays: how far a method is above others in its first slots, from a run of simulate.

    python benchmarks/first_slots.py OUT --method tanbr+regression --rivals regmean,average --slots 50

OUT is the folder that `tanbr simulate --out` named. Points on the same requests: mean over seeds, half of Student's
95% interval over them, and the lowest seed.
"""

import argparse
from pathlib import Path

import numpy as np

from tanbr.lab.intervals import interval
from tanbr.lab.simulate import Outcome, place
from tanbr.types import FloatArray


def rewards(out: Path, seed: int, method: str) -> FloatArray:
    """Mean reward of every slot: (T,)."""
    return np.array([record.total_reward for record in Outcome.load(place(out, seed, method)).records])


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
        leads = [rewards(options.out, s, options.method) - rewards(options.out, s, rival) for s in seeds]
        for name, slots in ((f"first {options.slots}", slice(options.slots)), ("all", slice(None))):
            found = interval([100 * lead[slots] for lead in leads])
            spread = f"{found.mean:+.1f} ± {found.over_seeds:.1f}, lowest {min(found.seeds):+.1f}"
            print(f"above {rival}, {name} slots: {spread}")


if __name__ == "__main__":
    main()
