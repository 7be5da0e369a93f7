"""The command line: parse, build, call. A user's mistake is one sentence and exit code 2."""

import sys

import typer
from rich.console import Console
from rich.markup import escape

from tanbr.cli import driving, merging, running, serving, simulating, training
from tanbr.errors import TanbrError

app = typer.Typer(
    name="tanbr",
    help="Serve a Mixture-of-Experts model at the cost of a dense one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for commands in (running.app, training.app, serving.app, driving.app, simulating.app, merging.app):
    app.add_typer(commands)


def main() -> None:
    """Run the command line; the console script `tanbr` starts here."""
    try:
        app()
    except TanbrError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        sys.exit(130)
