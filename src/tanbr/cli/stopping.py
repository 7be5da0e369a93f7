"""Ctrl-C or SIGTERM: one sentence that says what is kept and how to go on, exit code 130, no traceback."""

import signal
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

Command = TypeVar("Command", bound=Callable[..., Any])

STOPPED = 130  # 128 and the number of SIGINT, as shells count


def on_signals(act: Callable[[int, Any], Any] = signal.default_int_handler) -> None:
    """Handle SIGINT and SIGTERM, even if the parent process ignored them (nohup, `&` in a script, a supervisor)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, act)


def keeps(sentence: str) -> Callable[[Command], Command]:
    """Say of a command what a stop leaves; {names} in the sentence are the command's own options."""

    def stoppable(command: Command) -> Command:
        @wraps(command)
        def run(**options: Any) -> Any:
            try:
                return command(**options)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f": {sentence.format(**options)}") from None

        return run  # type: ignore[return-value]

    return stoppable


class Commands(TyperGroup):
    """All commands; those that keep nothing say no more than that they stopped."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            Console(stderr=True, highlight=False).print(f"[bold]stopped[/]{escape(str(stop))}", soft_wrap=True)
            raise typer.Exit(STOPPED) from None
