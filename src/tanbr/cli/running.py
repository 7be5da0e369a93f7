"""`tanbr demo` and `tanbr pretrain`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TaskID

from tanbr import config as configuration
from tanbr.cli.display import SlotDisplay, console, progress, standings_table
from tanbr.errors import ConfigError
from tanbr.tasks import traffic

app = typer.Typer()

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings that differ from the defaults.")
]


def _command() -> str:
    return shlex.join(["tanbr", *sys.argv[1:]])


@app.command(
    epilog="Examples:\n\n    tanbr demo\n\n    tanbr demo --traffic switching --slots 400 --seed 3 --out out/switching"
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and demo.json.")] = Path("out/demo"),
    slots: Annotated[int, typer.Option(min=20, help="How many slots to serve.")] = 300,
    requests: Annotated[int, typer.Option(min=8, help="Requests in a slot.")] = 64,
    kind: Annotated[
        str, typer.Option("--traffic", help=f"How the task mix moves: {', '.join(traffic.KINDS)}.")
    ] = "dirichlet",
    alpha: Annotated[float, typer.Option(help="How even the mixes are; small is one task at a time.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of traffic and router.")] = 0,
    config: ConfigFile = None,
) -> None:
    """Watch the whole idea work: drifting untagged traffic on the embedded model, beside three rivals."""
    import torch

    from tanbr.experiments import demo as experiment
    from tanbr.merge import open as open_moe
    from tanbr.moe import embedded
    from tanbr.tasks import tiny

    torch.set_num_threads(1)  # a model this small is no faster on more, and far slower when they are busy
    settings = configuration.load(config) if config else configuration.Config()
    moe = open_moe(embedded.path())
    with SlotDisplay(slots=slots, tasks=[task.name for task in tiny.TASKS], hero=experiment.TANBR) as display:
        done = experiment.run(
            moe, out=out, config=settings, slots=slots, requests=requests, kind=kind, alpha=alpha, seed=seed,
            watch=display, command=_command(),
        )  # fmt: skip
    tail = min(100, slots)
    console.print(standings_table(done.result, tail=tail))
    above, error = done.result.paired(experiment.TANBR, "best fixed", tail=tail)
    console.print(
        f"tanbr above the best fixed blend: {100 * above:+.1f} ± {100 * error:.1f} points over the last {tail} slots"
    )
    console.print(f"report: {done.report}\nfigures: {done.figures}")


PRESETS = {"tiny": configuration.PretrainConfig()}


@app.command(
    epilog="Examples:\n\n    tanbr pretrain --preset tiny --out out/tiny    # again after an interruption: it resumes"
)
def pretrain(
    preset: Annotated[str, typer.Option(help=f"What to train: {', '.join(PRESETS)}.")] = "tiny",
    out: Annotated[Path, typer.Option(help="Folder for the model and the resumable states.")] = Path("out/pretrain"),
    config: ConfigFile = None,
) -> None:
    """Train a task-routed MoE, measure what its blends are worth, and write both; resumes where it stopped."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")
    settings = configuration.load(config).pretrain if config else PRESETS[preset]

    import torch

    from tanbr.experiments import embedded as experiment

    torch.set_num_threads(1)  # as quick as two for a model this small, and the same sums on every machine
    with progress() as bar:
        bars: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int, note: str) -> None:
            if phase not in bars:
                bars[phase] = bar.add_task(phase, total=total, note=note)
            bar.update(bars[phase], completed=done, note=note)

        model, worth = experiment.train(settings, out=out, report=report, command=_command())
    console.print(experiment.tables(worth))
    console.print(f"model: {model}")
