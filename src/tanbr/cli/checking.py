"""`tanbr config` and `tanbr doctor`: what is set, and what this machine can do."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tanbr.cli.display import console
from tanbr.cli.running import ConfigFile
from tanbr.lab import settings as configuration

app = typer.Typer()


@app.command(
    epilog="Examples:\n\n    tanbr config > tanbr.toml\n\n    tanbr config --section serve\n\n"
    "    tanbr config --config mine.toml"
)
def config(
    section: Annotated[str | None, typer.Option(help="Print only this section: router, serve.guard, …")] = None,
    config: ConfigFile = None,
) -> None:
    """Print every setting as TOML with its meaning: the defaults, or a file's settings laid over them."""
    sys.stdout.write(configuration.to_toml(configuration.load(config), section=section) + "\n")


@app.command(epilog="Examples:\n\n    tanbr doctor\n\n    tanbr doctor --json")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Show what is installed, what the processor can do, and which commands lack something."""
    from tanbr.cli.machine import examine

    found = examine()
    if as_json:
        sys.stdout.write(json.dumps(asdict(found), indent=1) + "\n")
    else:
        table = Table(title="this machine", title_justify="left", show_header=False)
        for name, value in found.facts.items():
            table.add_row(name, value)
        console.print(table)
        table = Table("package", "version", "for", title="packages", title_justify="left")
        for part in found.packages:
            table.add_row(part.name, part.version or "[yellow]missing[/]", part.needed_for)
        console.print(table)
        for line in found.missing:
            console.print(f"missing: {escape(line)}", soft_wrap=True)
        if not found.missing:
            console.print("nothing is missing")
    if found.broken:
        raise typer.Exit(2)
