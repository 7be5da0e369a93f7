"""The regret study: routers on synthetic reward maps whose best blend is known, and under what deployment adds.

    python -m tanbr.lab.studies.regret --quick
    python -m tanbr.lab.studies.regret --suite hard --routers tanbr,tanbr:change=0,vector-gp --seeds 2 --out hard.json
    python -m tanbr.lab.studies.regret --suite requests --routers parts --slots 200 --seeds 3 --out ablation.json

A router is one of ROUTERS, or the default router with settings, or constants of its modules, changed:
`tanbr:change=0;choose.SNAP=0`. `parts` stands for the default router, and for it without each of its parts in turn.
The suite `requests` is no map: the embedded model answers requests whose mix drifts, on the server's loop; what it
earned less than 1 is its regret. `practice` is the same where blends are practised on logged requests; its rows and
seeds (`--first 100`) are for trying. Constants were chosen on map seeds from 100 upwards; results are of seeds from 0.
No constant may be chosen on the suite `held`.
"""

import argparse
import itertools
import json
import os
import platform
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tanbr.errors import ConfigError
from tanbr.files import write_atomically
from tanbr.lab.methods import Card, ComparedMethod, Kind
from tanbr.lab.pictures import line_chart, png
from tanbr.lab.report import grid
from tanbr.lab.rivals import Nucb, RandomBlend, VectorGP
from tanbr.lab.simulate import Study
from tanbr.lab.studies.reward_maps import MAPS, SUITES, BestBlends
from tanbr.moe import embedded
from tanbr.router import AskTell, Tanbr
from tanbr.router.config import PaperModeConfig, RouterConfig
from tanbr.types import Decision, FloatArray

MIXES = ("fixed", "switching", "sinusoidal")
PERIOD = 200  # slots until a moving mix returns
CURVE = 40  # points of a kept curve
ROUTER_SEED = 1000  # added to a scenario's seed: routers and maps never share a seed
MOVES = "the map moves"
PRACTICE = "practice"
CONDITIONS: dict[str, dict[str, Any]] = {
    "half the tasks unseen": {"unseen": 0.5},
    "rewards 5 slots late": {"delay": 5},
    "noise 0.15": {"noise": 0.15},
    "at most 2 experts": {"max_active": 2},
    "32 experts": {"experts": 32},
    MOVES: {},  # half way
}
REQUESTS = {"requests, experts known": True, "requests, experts unknown": False}
PRACTISED = (  # what is switched off, or made less of, where blends are practised on logged requests
    "default.PRACTICE_FITS=[]", "known.LIFT=0", "choose.MARGIN=-1", "choose.CLIMB_ROUNDS=0",
    "loop.practice.OPTIMISM=[null]", "loop.practice.OPTIMISM=[null,0.0]", "loop.practice.FIRST=48",
)  # fmt: skip
PARTS = (  # of the default router, each as it is switched off
    "choose.CLIMB_ROUNDS=0", "choose.SNAP=1e-6", "beta=0;known.BETA_FLOOR=0", "choose.OPEN_REACH=1e-6",
    "choose.MARGIN=-1", "default.FITS=[]", "known.LIFT=0", "gp.LIFT_DEVIATION=1e-6", "change=0", "watch.TOGETHER=0",
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """What a run is made of; two runs of equal scenario see the same map, mixes and noise."""

    family: str
    mix: str
    seed: int
    experts: int = 8
    tasks: int = 8
    max_active: int | None = None
    slots: int = 1000
    noise: float = 0.05
    unseen: float = 0.0  # chance that a task is not seen in a slot
    delay: int = 0  # slots until a reward arrives
    moves_at: int | None = None  # slot at which the map is replaced by another of its family


def task_mixes(kind: str, *, tasks: int, slots: int, rng: np.random.Generator) -> FloatArray:
    """Task mixes over time: (T, V)."""
    if kind == "fixed":
        return np.repeat(rng.dirichlet(np.ones(tasks))[None], slots, axis=0)
    if kind == "switching":
        return rng.dirichlet(np.full(tasks, 0.5), size=4)[(np.arange(slots) // (PERIOD // 4)) % 4]
    phase = rng.uniform(0, 2 * np.pi, tasks)
    wave = 1.0 + 0.95 * np.sin(2 * np.pi * (np.arange(slots)[:, None] % PERIOD) / PERIOD + phase)
    return np.asarray(wave / wave.sum(axis=1, keepdims=True))


def _searched(search: BestBlends, mix: FloatArray) -> float:
    """Search until a round adds nothing: with many experts one round is far from enough."""
    best, found = -1.0, search.value(mix)
    while found > best + 1e-4:
        best, found = found, max(search.value(mix) for _ in range(4))
    return found


class World:
    """A scenario's maps, mixes and best rewards; built once, run by many routers."""

    own: tuple[int, ...] | None = None  # a map's experts belong to no task

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = s = scenario
        rng = np.random.default_rng([s.seed, list(MAPS).index(s.family), MIXES.index(s.mix), s.experts])
        self.maps = [MAPS[s.family](s.experts, s.tasks, rng) for _ in range(2)]
        self.mixes = task_mixes(s.mix, tasks=s.tasks, slots=s.slots, rng=rng)
        self.when = np.zeros(s.slots, dtype=np.int64)  # which map holds in each slot
        if s.moves_at is not None:
            self.when[s.moves_at :] = 1
        self.best = np.zeros(s.slots)
        for which in np.unique(self.when):
            search = BestBlends(self.maps[which], experts=s.experts, max_active=s.max_active or s.experts, seed=s.seed)
            rows = np.flatnonzero(self.when == which)
            distinct, place = np.unique(self.mixes[rows], axis=0, return_inverse=True)
            self.best[rows] = np.array([_searched(search, mix) for mix in distinct])[place]
        self.noise_seed = int(rng.integers(2**31))

    def run(self, router: AskTell) -> FloatArray:
        """Play every slot; the rewards (T,), without noise."""
        s, rng = self.scenario, np.random.default_rng(self.noise_seed)
        reward = np.zeros(s.slots)
        late: deque[tuple[Decision, FloatArray]] = deque()
        for t in range(s.slots):
            decision = router.ask(self.mixes[t])
            mean = self.maps[self.when[t]](decision.blend[None])[0]
            reward[t] = self.mixes[t] @ mean
            seen = np.clip(mean + s.noise * rng.normal(size=s.tasks), 0.0, 1.0)
            seen[rng.random(s.tasks) < s.unseen] = np.nan
            late.append((decision, seen))
            if len(late) > s.delay:
                router.tell(*late.popleft())
        return reward


class Requests:
    """Requests of the embedded model, each answered once under a blend for all routers."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.best = scenario, np.ones(scenario.slots)
        tried = scenario.mix == PRACTICE
        more: dict[str, Any] = {} if tried else {"practice": 0}
        card: Card = "true" if REQUESTS[scenario.family] else "none"
        study = Study(
            embedded.path(), slots=scenario.slots, answers="labels", card=card, rehearse=tried, disjoint=tried, **more
        )
        self.bench = study.bench()
        self.stream = study.stream(self.bench.corpus, scenario.seed)
        self.own = self.bench.told_experts

    def run(self, router: AskTell) -> FloatArray:
        """Serve every slot; the rewards (T,)."""
        made = ComparedMethod("tanbr", Kind(lambda *_: router, learns=True))
        one = made.contestant(self.bench, mixes=self.stream.mixes, seed=self.scenario.seed)
        return np.array([one.play(slot.rows).total_reward for slot in self.stream])


def figures(reward: FloatArray, best: FloatArray) -> dict[str, Any]:
    """Say what one run comes down to: rewards (T,) beside the best blend's (T,)."""
    regret = best - reward
    reached = np.convolve(reward / best, np.full(20, 1 / 20), mode="valid") >= 0.95  # over 20 slots
    return {
        "mean": float(regret.mean()),
        "last": float(regret[-100:].mean()),
        "slots to 95%": int(reached.argmax()) if reached.any() else len(reward),
        "curve": [round(float(part.mean()), 5) for part in np.array_split(regret, min(CURVE, len(regret)))],
    }


OTHER_PAPER = {"rho": 0.9, "loss": "mean", "learning_rate": 0.01, "representative": "proportional"}  # picked by hand,
OTHER_NUCB = {"loss": "mean", "learning_rate": 0.01, "memory": 1000, "exploration": 0.3}  # as are these
ROUTERS: dict[str, Callable[..., AskTell]] = {  # of K, V, max_active= and seed=
    "random": RandomBlend,
    "paper": lambda K, V, **more: Tanbr(K, V, mode="paper", **more),
    "paper-other": lambda K, V, **more: Tanbr(
        K, V, mode="paper", config=RouterConfig.model_validate({"paper": OTHER_PAPER}), **more
    ),
    "nucb": lambda K, V, **more: Nucb(K, V, config=PaperModeConfig.model_validate(OTHER_NUCB), **more),
    "vector-gp": VectorGP,
    "tanbr": Tanbr,
}


def played(name: str, world: World | Requests) -> dict[str, Any]:
    """Run the router of a name; settings of the default router, and constants of its modules, may follow `tanbr:`."""
    base, _, settings = name.partition(":")
    if base not in ROUTERS or (settings and base != "tanbr"):
        raise ConfigError(f"unknown router {name!r}; there are {', '.join(ROUTERS)}, and tanbr:setting=value;…")
    scenario = world.scenario
    more: dict[str, Any] = {"max_active": scenario.max_active, "seed": ROUTER_SEED + scenario.seed}
    values = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in settings.split(";") if pair)}
    constants = {key: values.pop(key) for key in list(values) if "." in key}
    if base == "tanbr":
        config = RouterConfig.model_validate({"default": values})
        more["config"] = config if world.own is None else config.of_requests(world.own)
    with ExitStack() as patched:
        for key, value in constants.items():
            place = f"tanbr.{key}" if key.startswith("loop.") else f"tanbr.router.{key}"
            patched.enter_context(mock.patch(place, value))
        return figures(world.run(ROUTERS[base](scenario.experts, scenario.tasks, **more)), world.best)


def _spread(values: Sequence[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0:.4f}"


def table(runs: list[dict[str, Any]]) -> str:
    """Lay out, condition by condition, each router's regret, also by family, and its difference to the first."""
    lines = ["# Regret study", "", "Mean regret per slot ± standard error over runs; the last column is paired."]
    for condition in dict.fromkeys(run["condition"] for run in runs):
        own = [run for run in runs if run["condition"] == condition]
        of = {name: [run for run in own if run["router"] == name] for name in dict.fromkeys(r["router"] for r in own)}
        families, first = list(dict.fromkeys(run["family"] for run in own)), next(iter(of))
        header = ["router", "runs", "mean regret", "last 100", "slots to 95%, median", *families, f"minus {first}"]
        rows = []
        for name, these in of.items():
            gaps = [run["mean"] - other["mean"] for run, other in zip(these, of[first], strict=True)]
            by_family = [np.mean([run["mean"] for run in these if run["family"] == family]) for family in families]
            rows.append([
                name, str(len(these)), _spread([run["mean"] for run in these]),
                f"{np.mean([run['last'] for run in these]):.4f}",
                f"{np.median([run['slots to 95%'] for run in these]):.0f}",
                *(f"{mean:.4f}" for mean in by_family), _spread(gaps),
            ])  # fmt: skip
        lines += ["", f"## {condition}", "", grid(header, rows).rstrip()]
    return "\n".join(lines) + "\n"


def draw(runs: list[dict[str, Any]], path: Path, *, slots: int) -> None:
    """Draw regret over time, a line a router, as a mean over the runs of the first condition."""
    own = [run for run in runs if run["condition"] == runs[0]["condition"]]
    points = min(CURVE, slots)
    at = (np.arange(points) + 0.5) * slots / points
    curves = {
        name: np.mean([run["curve"] for run in own if run["router"] == name], axis=0)
        for name in dict.fromkeys(run["router"] for run in own)
    }
    lines = {name: (at, np.maximum(curve, 1e-4)) for name, curve in curves.items()}
    png(line_chart(lines, title="Mean regret on synthetic reward maps", xlabel="slot", yscale="log"), path)


def main(arguments: list[str] | None = None) -> None:
    """Run the study, print its tables, and keep what `--out` names (JSON, and tables and picture beside it)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 slots, K = 8, few routers: under a minute")
    parser.add_argument("--suite", choices=[*SUITES, "requests", PRACTICE], default="own", help="which reward maps")
    parser.add_argument("--conditions", default="plain", help=f"between commas: plain, {', '.join(CONDITIONS)}")
    parser.add_argument("--mixes", default=",".join(MIXES), help="which, between commas")
    parser.add_argument("--experts", default="4,8", help="between commas; 8, or its own, for a condition")
    parser.add_argument("--routers", help=f"between commas: {', '.join(ROUTERS)}, tanbr:setting=value;…, parts")
    parser.add_argument("--seeds", type=int, default=1, help="how many map seeds")
    parser.add_argument("--first", type=int, default=0, help="first map seed; from 100 on they are for trying")
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="write runs to this JSON file; tables and picture go beside it")
    options = parser.parse_args(arguments)
    served = options.suite in ("requests", PRACTICE)
    if served and options.conditions != "plain":
        parser.error("conditions are of maps; leave --conditions out, or the suite")
    slots = 100 if options.quick else options.slots
    few = ["tanbr", "random"]
    names = options.routers.split(",") if options.routers else few if options.quick else list(ROUTERS)
    if "parts" in names:
        names = ["tanbr", *(f"tanbr:{part}" for part in (PRACTISED if options.suite == PRACTICE else PARTS))]
    runs: list[dict[str, Any]] = []
    for condition in options.conditions.split(","):
        change = {} if condition == "plain" else dict(CONDITIONS[condition])
        sizes = [8] if options.quick or condition != "plain" else [int(size) for size in options.experts.split(",")]
        sizes = [change.pop("experts")] if "experts" in change else sizes
        change |= {"slots": slots} | ({"moves_at": slots // 2} if condition == MOVES else {})
        seeds = range(options.first, options.first + options.seeds)
        families, mixes = SUITES.get(options.suite, REQUESTS), options.mixes.split(",")
        if served:
            mixes, sizes = [PRACTICE if options.suite == PRACTICE else "drifting"], [8]
        for family, mix, experts, seed in itertools.product(families, mixes, sizes, seeds):
            scenario = Scenario(family, mix, seed, experts=experts, **change)
            world = Requests(scenario) if family in REQUESTS else World(scenario)
            for name in names:
                about = {"condition": condition, "router": name, "family": family, "mix": mix, "experts": experts}
                found = played(name, world)
                runs.append({**about, "seed": seed, **found})
                print(*about.values(), seed, f"{found['mean']:.4f}", sep=" | ", file=sys.stderr, flush=True)
    print(table(runs))
    if options.out:
        command = "python -m tanbr.lab.studies.regret " + " ".join(arguments or sys.argv[1:])
        head = {"command": command, "python": platform.python_version(), "numpy": np.__version__, "slots": slots}
        write_atomically(options.out, json.dumps({**head, "runs": runs}) + "\n")
        write_atomically(options.out.with_suffix(".md"), table(runs))
        draw(runs, options.out.with_suffix(".png"), slots=slots)


if __name__ == "__main__":
    main()
