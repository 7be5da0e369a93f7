"""What each part of the default router is worth: the router without it, on the same requests and seeds.

    python -m tanbr.lab.studies.ablation --out docs/results/ablation

Worlds are the embedded model's requests with a drifting mix, on the server's loop, where the experts' tasks are known
or not; and the reward maps of the regret study, still or replaced half-way. A cell is what is lost without a part:
points of reward ± standard error over seeds. Each world and seed is a job of its own: a run that was stopped goes on,
and several commands with other `--seeds` may fill one folder.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from tanbr.files import write_atomically
from tanbr.lab.jobs import Job, do, load
from tanbr.lab.simulate import Study
from tanbr.lab.studies.regret import ROUTER_SEED, Scenario, World
from tanbr.lab.studies.reward_maps import OWN
from tanbr.lab.world import Contestant, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.moe import embedded
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig

WHOLE = "nothing"
PARTS: dict[str, dict[str, Any]] = {  # settings, or constants of `tanbr.router`, that turn a part off
    WHOLE: {},
    "vertex tree": {"room": 0},
    "climbing": {"choose.CLIMB_ROUNDS": 0},
    "snapping": {"choose.SNAP": 1e-6},
    "optimism": {"beta": 0.0, "known.BETA_FLOOR": 0.0},
    "open blends": {"choose.OPEN_REACH": 1e-6},
    "all fits": {"default.FITS": (), "default.EARLY_FITS": ()},
    "early fits": {"default.EARLY_FITS": ()},
    "lift": {"known.LIFT": 0.0},
    "margin": {"conservative.MARGIN": 0.0},
    "ledger": {"budget": 1.0},
    "change watch": {"change": 0.0},
}
Play: TypeAlias = Callable[[RouterConfig], float]  # runs a router with these settings: its mean reward


def without(part: Mapping[str, Any], play: Play) -> float:
    """Play with a part turned off."""
    settings = {name: value for name, value in part.items() if "." not in name}
    with ExitStack() as patched:
        for name in part.keys() - settings.keys():
            patched.enter_context(mock.patch(f"tanbr.router.{name}", part[name]))
        return play(RouterConfig.model_validate({"default": settings}))


def of_requests(seed: int, slots: int, *, known: bool) -> Play:
    """Serve the embedded model; what it answers under a blend is kept for all routers."""
    study = Study(embedded.path(), slots=slots)
    bench = study.bench()
    stream, own, K = study.stream(bench.corpus, seed), bench.own_experts if known else (), bench.sizes[0]
    monitor = bench.corpus.taught_monitor(bench.config.monitor, seed=seed)
    monitor.snapshot()  # fitted once, for all forks

    def play(config: RouterConfig) -> float:
        router = Tanbr(*bench.sizes, seed=seed, config=config.of_requests(own))
        world, start = StreamWorld(bench.answers.each, bench.corpus.space), StartBlend(None, experts=K, own_experts=own)
        one = Contestant(world, router, monitor.fork(), start=start, config=LoopConfig())
        return float(np.mean([one.play(slot.rows).total_reward for slot in stream]))

    return play


def of_maps(seed: int, slots: int, *, replaced: bool) -> Play:
    """Play the study's families of maps, with a mix that switches."""
    moves = slots // 2 if replaced else None
    worlds = [World(Scenario(family, "switching", seed, slots=slots, moves_at=moves)) for family in OWN]

    def play(config: RouterConfig) -> float:
        return float(np.mean([world.run(Tanbr(8, 8, seed=ROUTER_SEED + seed, config=config)) for world in worlds]))

    return play


WORLDS: dict[str, Callable[[int, int], Play]] = {
    "requests, experts known": lambda seed, slots: of_requests(seed, slots, known=True),
    "requests, experts unknown": lambda seed, slots: of_requests(seed, slots, known=False),
    "maps": lambda seed, slots: of_maps(seed, 2 * slots, replaced=False),
    "maps, replaced": lambda seed, slots: of_maps(seed, 2 * slots, replaced=True),
}


def job(world: str, seed: int, slots: int) -> Job:
    """Play one world and seed without each part in turn."""

    def run(_: Any) -> dict[str, float]:
        play = WORLDS[world](seed, slots)
        return {name: round(without(part, play), 5) for name, part in PARTS.items()}

    name = f"{world.replace(',', '').replace(' ', '-')}-seed{seed}"
    return Job(name, run, {"world": world, "seed": seed, "slots": slots, "parts": PARTS})


def table(earned: Mapping[str, list[Mapping[str, float]]]) -> Iterator[str]:
    """Lay out what is lost without each part, a line a part: world → what its seeds earned."""
    yield f"| without | {' | '.join(earned)} |"
    yield "|---" * (1 + len(earned)) + "|"
    for part in PARTS:
        cells = [f"{100 * np.mean([seed[WHOLE] for seed in seeds]):.1f}" for seeds in earned.values()]
        if part != WHOLE:
            lost = [100 * np.array([seed[part] - seed[WHOLE] for seed in seeds]) for seeds in earned.values()]
            cells = [
                f"{one.mean():+.1f} ± {one.std(ddof=min(1, len(one) - 1)) / np.sqrt(len(one)):.1f}" for one in lost
            ]
        yield f"| {part} | {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="between commas, at least two for an error")
    parser.add_argument("--slots", type=int, default=200, help="of the embedded model; maps have twice as many")
    parser.add_argument("--out", type=Path, default=Path("out/ablation"), help="folder for the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    earned: dict[str, list[Mapping[str, float]]] = {}
    for seed in map(int, options.seeds.split(",")):
        for world in WORLDS:
            one = job(world, seed, options.slots)
            kept = load(options.out, one) or do(options.out, one)
            earned.setdefault(world, []).append(kept.result)
            print(f"{world}, seed {seed}: {kept.seconds:.0f} s", file=sys.stderr, flush=True)
    write_atomically(options.out / "ablation.md", "\n".join(table(earned)) + "\n")
    print(*table(earned), sep="\n")


if __name__ == "__main__":
    main()
