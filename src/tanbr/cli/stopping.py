"""Ctrl-C or SIGTERM: one sentence, exit code 130, no traceback."""

import signal
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

STOPPED = 130  # 128 and the number of SIGINT, as shells count


def on_signals(act: Callable[[int, Any], Any] = signal.default_int_handler) -> None:
    """Handle SIGINT and SIGTERM, even if the parent process ignored them (nohup, `&` in a script, a supervisor)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, act)


class Commands(TyperGroup):
    """All commands; those whose help says that they resume say so when they are stopped."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            resumes = command is not None and "Resumes where it stopped" in (command.help or "")
            said = ": what was done is kept; the same command goes on with the rest" if resumes else ""
            Console(stderr=True, highlight=False).print(f"[bold]stopped[/]{said}", soft_wrap=True)
            raise typer.Exit(STOPPED) from None
