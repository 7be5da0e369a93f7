"""What a task's own expert is worth in a run of simulate: how rewards differ where two methods weigh it differently.

    python benchmarks/lift.py OUT --methods tanbr+regression,proportional+regression

OUT is the folder that `tanbr simulate --out` named, on a checkpoint whose expert v was trained for task v. Both methods
answer the same requests, so a slot in which they give a task's expert the weights x and y tells its reward's rise
λ·(rise(x) − rise(y)), with `rise` of `router/kernel.py`. λ is the slope by least squares, each task of a slot weighed
by its requests: over all seeds, half of Student's 95% interval over them, and task by task.
"""

import argparse
from pathlib import Path

import numpy as np

from tanbr.lab.intervals import interval
from tanbr.lab.simulate import Outcome, place
from tanbr.router.panel import rise
from tanbr.types import FloatArray


def moments(out: Path, seed: int, methods: tuple[str, str]) -> FloatArray:
    """Sums behind the slope, by task: Σ n·a·b and Σ n·a², of rises a and differences b of reward (2, V)."""
    left, right = (Outcome.load(place(out, seed, name)).records for name in methods)
    found = np.zeros((2, len(left[0].counts)))
    for one, other in zip(left, right, strict=True):
        steps = np.asarray(rise(one.blend)) - np.asarray(rise(other.blend))
        gains = np.where(one.counts > 0, one.reward - other.reward, 0.0)  # NaN where unseen
        found += one.counts * steps * np.stack([gains, steps])
    return found


def main() -> None:
    """Print the lift of all tasks together, and of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", default="tanbr+regression,proportional+regression", help="two, by comma")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    options = parser.parse_args()
    left, right = options.methods.split(",")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    sums = np.stack([moments(options.out, seed, (left, right)) for seed in seeds])  # (seeds, 2, V)
    of_seeds = interval([np.array([a / b]) for a, b in sums.sum(axis=2)])
    products, squares = sums.sum(axis=(0, 2))
    print(f"lift {products / squares:.3f}; by seeds {of_seeds.mean:.3f} ± {of_seeds.over_seeds:.3f}")
    of_tasks = sums.sum(axis=0)
    with np.errstate(invalid="ignore"):
        print("by task:", " ".join(f"{lift:.2f}" for lift in of_tasks[0] / of_tasks[1]))


if __name__ == "__main__":
    main()
