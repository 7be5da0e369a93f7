"""What each part of the default router is worth: the router without it, on the same requests and seeds.

    python -m tanbr.lab.ablation --seeds 4 --slots 160

Worlds are the embedded model's requests with a drifting mix, the experts' tasks known or not, and the study's reward
maps, still or replaced half-way. A row is what is lost without a part: points of reward ± standard error over seeds.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np

from tanbr.lab.answers import Answers
from tanbr.lab.corpus import generated
from tanbr.lab.studies.reward_maps import OWN
from tanbr.lab.tasks import traffic
from tanbr.lab.train.checkpoints import own_experts
from tanbr.lab.world import Contestant, StreamWorld
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.merge import open as open_moe
from tanbr.moe.embedded import path as embedded
from tanbr.monitor.config import MonitorConfig
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.serve.dense import DenseModel
from tanbr.types import FloatArray

REQUESTS, NOISE = 64, 0.05
Run = Callable[[Tanbr], FloatArray]  # plays every slot: the rewards (T,)
PARTS: dict[str, dict[str, Any]] = {  # settings, or constants of `tanbr.router`, that turn a part off
    "whole": {},
    "vertex tree": {"room": 0},
    "climbing": {"choose.CLIMB_ROUNDS": 0},
    "change watch": {"change": 0.0},
    "lift": {"known.LIFT": 0.0},
    "all fits": {"default.FITS": (), "default.EARLY_FITS": ()},
    "early fits": {"default.EARLY_FITS": ()},
    "margin": {"conservative.MARGIN": 0.0},
    "ledger": {"budget": 1.0},
    "snapping": {"choose.SNAP": 1e-6},
}


def embedded_worlds(seed: int, slots: int) -> Iterator[tuple[str, tuple[int, ...] | None, tuple[int, int], Run]]:
    """Requests to the embedded model; answers under a blend are kept, whichever router asks."""
    moe, corpus = open_moe(embedded()), generated()
    own = own_experts(moe, [task.name for task in corpus.tasks])
    K, V = moe.num_experts, len(corpus.tasks)
    for alpha in (0.1, 0.3):
        mixes = traffic.mixes("dirichlet", tasks=V, slots=slots, seed=seed, alpha=alpha)
        stream = list(traffic.Traffic(pools=corpus.stream, mixes=mixes, requests=REQUESTS, seed=seed))
        monitor = corpus.taught_monitor(MonitorConfig(), seed=seed)
        answers = Answers(DenseModel(moe, corpus.space))

        def run(router: Tanbr, stream: Any = stream, monitor: Any = monitor, answers: Any = answers) -> FloatArray:
            start = StartBlend(None, experts=K, own_experts=router.config.default.own_experts)
            world = StreamWorld(answers.each, corpus.space)
            one = Contestant(world, router, monitor.fork(), experts=K, tasks=V, config=LoopConfig(), start=start)
            return np.array([one.play(slot.rows).total_reward for slot in stream])

        yield f"Dirichlet({alpha}), known", own, (K, V), run
        yield f"Dirichlet({alpha}), unknown", (), (K, V), run


def map_worlds(seed: int, slots: int) -> Iterator[tuple[str, tuple[int, ...] | None, tuple[int, int], Run]]:
    """The study's families of reward maps, with a mix that switches every 50 slots."""
    K = V = 8
    for number, make in enumerate(OWN.values()):
        for moves in (False, True):
            rng = np.random.default_rng([seed, number])
            maps = [make(K, V, rng) for _ in range(2)]
            mixes = rng.dirichlet(np.full(V, 0.5), size=4)[np.arange(slots) // 50 % 4]

            def run(router: Tanbr, maps: Any = maps, mixes: Any = mixes, moves: bool = moves) -> FloatArray:
                earned, noise = [], np.random.default_rng([seed, 9])
                for slot, mix in enumerate(mixes):
                    decision = router.ask(mix)
                    mean = maps[int(moves and 2 * slot >= slots)](decision.blend[None])[0]
                    earned.append(float(mix @ mean))
                    router.tell(decision, np.clip(mean + NOISE * noise.normal(size=V), 0.0, 1.0))
                return np.array(earned)

            yield ("maps, replaced" if moves else "maps"), None, (K, V), run


def play(run: Run, part: Mapping[str, Any], own: tuple[int, ...] | None, sizes: tuple[int, int], seed: int) -> float:
    """Run a router without a part: its mean reward."""
    settings = {name: value for name, value in part.items() if "." not in name}
    config = RouterConfig.model_validate({"default": settings})
    with ExitStack() as patched:
        for name, value in part.items():
            if "." in name:
                patched.enter_context(mock.patch(f"tanbr.router.{name}", value))
        router = Tanbr(*sizes, seed=seed, config=config if own is None else config.of_requests(own))
        return float(run(router).mean())


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--slots", type=int, default=160, help="of the embedded model; maps have 400")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts to leave out, between commas")
    options = parser.parse_args()
    parts = dict.fromkeys(["whole", *options.parts.split(",")])
    earned: dict[str, dict[str, list[float]]] = {}
    for seed in range(options.seeds):
        for world, own, sizes, run in (*embedded_worlds(seed, options.slots), *map_worlds(seed, 400)):
            for part in parts:
                earned.setdefault(world, {}).setdefault(part, []).append(play(run, PARTS[part], own, sizes, seed))
    lines = ["| without | " + " | ".join(earned) + " |", "|" + "---|" * (len(earned) + 1)]
    lines.append(
        "| nothing | " + " | ".join(f"{100 * np.mean(rewards['whole']):.1f}" for rewards in earned.values()) + " |"
    )
    for part in list(parts)[1:]:
        lost = [100 * (np.array(rewards[part]) - rewards["whole"]) for rewards in earned.values()]
        cells = (f"{one.mean():+.1f} ± {one.std(ddof=1) / np.sqrt(len(one)):.1f}" for one in lost)
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
