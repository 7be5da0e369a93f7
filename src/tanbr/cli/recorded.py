"""What a server recorded: `tanbr backup` and `tanbr replay`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tanbr.cli.display import console
from tanbr.cli.running import ConfigFile, command_line
from tanbr.files import write_atomically
from tanbr.lab import settings as configuration
from tanbr.lab.rivals import ROUTERS, build, kind

app = typer.Typer()


@app.command(epilog="Examples:\n\n    tanbr backup out/serve copies/monday")
def backup(
    state: Annotated[Path, typer.Argument(help="A server's --state folder; the server may be running.")],
    out: Annotated[Path, typer.Argument(help="New folder for the copy: a state that a server can start from.")],
) -> None:
    """Copy what a server has learned, even while it runs."""
    from tanbr.serve.backup import back_up

    console.print(f"copied to {escape(str(back_up(state, out)))}")


@app.command(
    epilog="Examples:\n\n    tanbr replay out/serve\n\n"
    "    tanbr replay out/serve --routers tanbr,average --out replay.json"
)
def replay(
    log: Annotated[Path, typer.Argument(help="A server's --state folder; the server may be running.")],
    routers: Annotated[str, typer.Option(help=f"Which to run: {', '.join(ROUTERS)}.")] = "tanbr,average,random",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the routers.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File for the figures, as JSON.")] = None,
    config: ConfigFile = None,
) -> None:
    """Run other routers over a server's record, and say how far the record supports the outcome."""
    settings = configuration.load(config)
    names = routers.split(",")
    for name in names:
        kind(name)
    from tanbr.serve.replay import read_log
    from tanbr.serve.replay import replay as run

    recorded = read_log(log)
    K, V = recorded.blends.shape[1], recorded.mixes.shape[1]
    chosen = settings.router.of_requests()
    result = run(recorded, {name: build(name, K, V, seed=seed, config=chosen) for name in names}, seed=seed)
    table = Table("router", "reward", "±", "near what was served", "", box=None, padding=(0, 2, 0, 0))
    for one in result.routers:
        vouched = "" if one.supported else "a guess"
        table.add_row(one.router, f"{one.reward:.3f}", f"{one.deviation:.3f}", f"{one.coverage:.0%}", vouched)
    console.print(table)
    console.print(
        f"{result.slots} slots, {result.blends} blends, recorded reward {result.logged_reward:.3f}; the surrogate "
        f"foretells a slot to {result.held_out:.3f}, the mean alone to {result.held_out_by_mean:.3f}"
    )
    if result.held_out >= result.held_out_by_mean:
        console.print("so this record tells no blend from another: no order of the routers follows from it")
    if out is not None:
        figures = {"command": command_line(), "seed": seed, **asdict(result)}
        write_atomically(out, json.dumps(figures, indent=2) + "\n")
        console.print(f"figures: {out}")
