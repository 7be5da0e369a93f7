"""What the monitor costs in the end: reward of the router with the estimated task mix against the true one.

Same requests, same router seed, same loop; only the source of ψ differs. Writes JSON and prints a table.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tanbr.files import write_atomically
from tanbr.lab.answers import Answers, Blended, model_for
from tanbr.lab.compare import KnownMix, compare
from tanbr.lab.contestant import Contestant, MixSource, OneModel
from tanbr.lab.demo import POOL, TRAFFIC_SEED
from tanbr.lab.settings import Config
from tanbr.lab.tasks import tiny, traffic
from tanbr.lab.tasks.traffic import Traffic
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.router import Tanbr
from tanbr.serve.build import taught_monitor
from tanbr.tasks.metrics import LabelSpace

ESTIMATED, TRUE = "estimated mix", "true mix"


def main() -> None:
    """Run the comparison for every kind of traffic and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run")
    parser.add_argument("--slots", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.quick:
        options.slots, options.seeds = 60, 1

    moe, config, space = open_moe(embedded.path()), Config(), LabelSpace(tiny.TASKS)
    V, answers = len(tiny.TASKS), Answers(model_for(moe, space))
    kinds = ("dirichlet", "switching")
    rows = []
    with Progress() as progress:
        bar = progress.add_task("slots", total=len(kinds) * options.seeds * options.slots)
        for kind in kinds:
            for seed in range(options.seeds):
                mixes = traffic.mixes(kind, tasks=V, slots=options.slots, seed=seed, alpha=0.1)
                pools = {
                    t.name: tiny.generate(t.name, POOL, seed=TRAFFIC_SEED + seed, split="test") for t in tiny.TASKS
                }
                sources: dict[str, MixSource] = {
                    ESTIMATED: taught_monitor(config.monitor, seed=seed),
                    TRUE: KnownMix(mixes),
                }
                contestants: dict[str, Contestant] = {
                    name: OneModel(
                        Blended(answers), Tanbr(moe.num_experts, V, seed=seed, config=config.router), source, V
                    )
                    for name, source in sources.items()
                }
                result = compare(
                    contestants, Traffic(pools, mixes, requests=64, seed=seed), space=space, best=TRUE,
                    watch=lambda *_: progress.advance(bar),
                )  # fmt: skip
                forecasts = np.array([record.task_mix for record in result.records[ESTIMATED]])
                means = {name: float(result.rewards(name).mean()) for name in sources}
                rows.append(
                    {
                        "traffic": kind,
                        "seed": seed,
                        **means,
                        "ratio": means[ESTIMATED] / means[TRUE],
                        "forecast_l1": float(np.abs(forecasts - mixes).sum(axis=1).mean()),
                    }
                )

    ratios = np.array([row["ratio"] for row in rows])
    spread = float(ratios.std(ddof=1) / np.sqrt(len(ratios))) if len(ratios) > 1 else 0.0
    table = Table(*rows[0].keys())
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.4g}" for value in row.values()))
    console = Console()
    console.print(table)
    console.print(f"reward with the estimated mix over that with the true one: {ratios.mean():.3f} ± {spread:.3f}")
    if options.out:
        command = f"python benchmarks/mix_effect.py --slots {options.slots} --seeds {options.seeds}"
        summary = {"command": command, "ratio": float(ratios.mean()), "ratio_se": spread, "runs": rows}
        write_atomically(options.out, json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
