"""The command line: parse, build, call. A user's mistake is one sentence and exit code 2."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import tanbr
from tanbr.cli import checking, merging, reproducing, sending, serving, simulating, training
from tanbr.cli.stopping import Commands, on_signals
from tanbr.errors import TanbrError

app = typer.Typer(
    name="tanbr",
    cls=Commands,
    help="Serve a Mixture-of-Experts model at the cost of a dense one.",
    epilog="Exit codes: 0 done; 2 a mistake in options, input or files, explained in one sentence; "
    "130 stopped by Ctrl-C or SIGTERM; 1 an unexpected error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for module in (simulating, serving, sending, merging, training, reproducing, checking):
    app.add_typer(module.app)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tanbr {tanbr.__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve a Mixture-of-Experts model at the cost of a dense one."""


def main() -> None:
    """Run the command line; the console script `tanbr` starts here."""
    on_signals()
    try:
        app()
    except TanbrError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
