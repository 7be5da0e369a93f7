"""Ctrl-C or SIGTERM: one sentence that says what is kept and how to go on, exit code 130, no traceback."""

import signal
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

P = ParamSpec("P")
R = TypeVar("R")

STOPPED = 130  # 128 and the number of SIGINT, as shells count


def on_signals(act: Callable[[int, Any], Any] = signal.default_int_handler) -> None:
    """Handle SIGINT and SIGTERM, even if the parent process ignored them (nohup, `&` in a script, a supervisor)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, act)


def _stop(kept: str) -> typer.Exit:
    Console(stderr=True, highlight=False).print(f"[bold]stopped[/]{escape(kept)}", soft_wrap=True)
    return typer.Exit(STOPPED)


def keeps(sentence: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Say of a command what a stop leaves; {names} in the sentence are the command's own options."""

    def stoppable(command: Callable[P, R]) -> Callable[P, R]:
        @wraps(command)
        def run(*args: P.args, **options: P.kwargs) -> R:
            try:
                return command(*args, **options)
            except KeyboardInterrupt:
                raise _stop(f": {sentence.format(**options)}") from None

        return run

    return stoppable


class Commands(TyperGroup):
    """All commands; those that keep nothing say no more than that they stopped."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _stop("") from None
