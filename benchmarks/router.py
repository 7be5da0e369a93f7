"""How long the router takes: one decision next to plain PyTorch, and `ask` and `tell` as slots pass.

Fig. 6 is `tanbr reproduce fig6`. Every comparison is a ratio inside one run. `--quick` is for a first look; `--out`
keeps the figures as JSON.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # both sides of a comparison on one core

import numpy as np
import torch

from serving.rounds import report
from tanbr.lab.paper.fig6 import ASKED, EVEN, TASKS, WIDTH, milliseconds, paper_router, random_reward, steps_to_leaves
from tanbr.router import Tanbr
from tanbr.router.paper import Algorithm1, DiagonalConfidence, PaperState, unit


class PlainTorch:
    """The decision as one would first write it: autograd for each candidate, a diagonal Z as one long vector."""

    def __init__(self, router: Algorithm1, state: PaperState) -> None:
        belief, tree = state.belief, state.tree
        self.weights = [torch.tensor(theta, requires_grad=True) for theta in belief.theta]
        assert isinstance(belief.Z, DiagonalConfidence)
        self.z = torch.cat([torch.tensor(layer).flatten() for layer in belief.Z.diagonal])
        leaves = tree.active_leaves
        self.inputs = torch.tensor(unit(tree.blend[leaves]))
        self.granularity = torch.tensor(router.config.rho ** tree.depth[leaves].astype(np.float64))
        self.gamma, self.mix = router.config.exploration, torch.tensor(EVEN)

    def bounds(self) -> torch.Tensor:
        """U of every candidate."""
        bounds = []
        for x, granularity in zip(self.inputs, self.granularity, strict=True):
            hidden = x
            for theta in self.weights[:-1]:
                hidden = torch.relu(theta @ hidden)
            value = self.mix @ (WIDTH**0.5 * (self.weights[-1] @ hidden))
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, self.weights)])
            width = self.gamma * torch.sqrt((gradient * gradient / self.z).sum() / WIDTH)
            bounds.append(value.detach() + granularity + width)
        return torch.stack(bounds)


def decision_speed(*, repeats: int) -> dict[str, Any]:
    """Algorithm 1's lines 3 to 7 over 20 leaves at K = 192, next to PyTorch."""
    router = paper_router(192)
    state, _ = steps_to_leaves(router)
    plain, rng = PlainTorch(router, state), np.random.default_rng(0)
    chosen = router.choose(state, ASKED, rng).why
    assert abs(float(plain.bounds().max()) - chosen.bound) < 1e-9, "the two must agree before they race"
    rows: dict[str, list[float]] = {"ours": [], "torch": []}
    for _ in range(repeats):  # side by side, so that a busy machine slows both alike
        rows["ours"].append(milliseconds(lambda: router.choose(state, ASKED, rng), repeats=3, loops=50)["median"])
        rows["torch"].append(milliseconds(plain.bounds, repeats=3, loops=2)["median"])
    ratios = [slow / fast for slow, fast in zip(rows["torch"], rows["ours"], strict=True)]
    return {
        "leaves": chosen.candidates, "milliseconds": rows, "ratio": statistics.median(ratios), "ratios": ratios,
    }  # fmt: skip


def slot_speed(experts: int, *, marks: tuple[int, ...], repeats: int, unseen: float = 0.0) -> dict[str, Any]:
    """`ask` and `tell` of the default mode around certain slots, and the size of the state at the last."""
    router, rng = Tanbr(experts, TASKS), np.random.default_rng(0)
    mixes = rng.dirichlet(np.ones(TASKS), size=16)
    asks, tells = [], []
    result: dict[str, Any] = {"experts": experts, "unseen": unseen}
    half = 50 * repeats // 2
    for slot in range(marks[-1] + half):
        start = time.perf_counter()
        decision = router.ask(mixes[slot % 16])
        middle = time.perf_counter()
        reward = random_reward(rng, decision.blend)
        reward[rng.random(TASKS) < unseen] = np.nan
        begin = time.perf_counter()
        router.tell(decision, reward)
        asks.append(middle - start)
        tells.append(time.perf_counter() - begin)
    for mark in marks:
        for name, times in (("ask", asks), ("tell", tells)):
            low, mid, high = statistics.quantiles(times[max(mark - half, 0) : mark + half], n=4)
            result[f"{name} at {mark}"] = {"median_ms": 1e3 * mid, "low_ms": 1e3 * low, "high_ms": 1e3 * high}
    result["tell ratio"] = result[f"tell at {marks[-1]}"]["median_ms"] / result[f"tell at {marks[0]}"]["median_ms"]
    with tempfile.TemporaryDirectory() as folder:
        router.save(Path(folder) / "state.npz")
        result["state_megabytes"] = (Path(folder) / "state.npz").stat().st_size / 1e6
    return result


def main() -> None:
    """Measure, print, and keep what `--out` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and slots, under a minute")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 5 if options.quick else 15
    marks = (500, 1500) if options.quick else (500, 5000)

    slots = [slot_speed(experts, marks=marks, repeats=repeats) for experts in (8, 192)]
    slots.append(slot_speed(8, marks=marks, repeats=repeats, unseen=0.5))
    found = {
        "python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__, "threads": 1,
        "repeats": repeats, "decision": decision_speed(repeats=repeats), "slots": slots,
    }  # fmt: skip
    report(found, options.out)


if __name__ == "__main__":
    main()
