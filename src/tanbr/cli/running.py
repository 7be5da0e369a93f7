"""`tanbr demo`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tanbr.cli.display import SlotDisplay, console, standings_tables
from tanbr.cli.stopping import keeps
from tanbr.lab import settings as configuration
from tanbr.lab.tasks import traffic

app = typer.Typer()

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings that differ from the defaults.")
]
DEVICE = typer.Option("--device", help="Torch device that models run on, as cuda or cuda:1; cpu if left out.")


def command_line() -> str:
    """Give the command as it was typed, without the places of this machine."""
    words = [word.rstrip("/").rsplit("/", 1)[-1] if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["tanbr", *words])


@app.command(
    epilog="Examples:\n\n    tanbr demo\n\n    tanbr demo --traffic switching --slots 400 --seed 3 --out out/switching"
)
@keeps("a demo keeps nothing until its end; run it again")
def demo(
    model: Annotated[Literal["bert", "t5"], typer.Option(help="Embedded model: bert classifies, t5 writes.")] = "bert",
    out: Annotated[Path, typer.Option(help="Folder for report.html and demo.json.")] = Path("out/demo"),
    slots: Annotated[int, typer.Option(min=20, help="How many slots to serve.")] = 300,
    requests: Annotated[int, typer.Option(min=8, help="Requests in a slot.")] = 64,
    kind: Annotated[
        str, typer.Option("--traffic", help=f"How the task mix moves: {', '.join(traffic.KINDS)}.")
    ] = "dirichlet",
    alpha: Annotated[float, typer.Option(help="How even the mixes are; a small value means one task at a time.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of traffic and router.")] = 0,
    device: Annotated[str, DEVICE] = "cpu",
    config: ConfigFile = None,
) -> None:
    """Watch the whole idea work: untagged, drifting traffic on the embedded model, one merged model and two."""
    traffic.check(kind, slots=slots, alpha=alpha)  # what can be refused at once is, before seconds of imports
    settings = configuration.load(config)

    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    from tanbr.lab import demo as experiment
    from tanbr.lab.tasks import tiny
    from tanbr.merge import open as open_moe
    from tanbr.moe import embedded

    torch.set_num_threads(1)  # a model this small is no faster on more, and far slower when they are busy
    moe = open_moe(embedded.path(model), device=device)
    with (
        threadpool_limits(1),  # so are the router's matrices
        SlotDisplay(slots=slots, tasks=[task.name for task in tiny.TASKS], subject=experiment.TANBR) as display,
    ):
        done = experiment.run(
            moe, out=out, config=settings, slots=slots, requests=requests, kind=kind, alpha=alpha, seed=seed,
            watch=display, command=command_line(),
        )  # fmt: skip
    tail = min(100, slots)
    console.print(*standings_tables(done.result, tail=tail), sep="\n")
    for fact, words in done.facts.items():
        if " above " in fact:
            console.print(f"{fact}: {words}")
    console.print(f"report: {done.report}\nfigures: {done.figures}")
