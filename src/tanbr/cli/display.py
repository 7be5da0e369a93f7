"""What a person sees: progress bars, tables that fit the terminal, the self-check."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from tanbr.serve.check import Check

console = Console(highlight=False)
RECENT = 20  # slots that a moving figure averages


def progress(unit: str = "") -> Progress:
    """Make a progress bar with counts, elapsed and remaining time, and a field `note`."""
    return Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), unit, TimeElapsedColumn(), "left",
        TimeRemainingColumn(), "{task.fields[note]}", console=console,
    )  # fmt: skip


@contextmanager
def phases(unit: str = "") -> Iterator[Callable[..., None]]:
    """Show a bar for each phase: its name, how far it is, of how much, a note; a phase of no length is printed."""
    with progress(unit) as shown:
        bars: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int, note: str = "") -> None:
            if not total:
                shown.console.print(escape(phase), soft_wrap=True)
                return
            if phase not in bars:
                bars[phase] = shown.add_task(phase, total=total, note=note)
            shown.update(bars[phase], completed=done, note=note)

        yield report


@contextmanager
def bar(what: str, *, unit: str = "tensors") -> Iterator[Callable[[int, int], None]]:
    """Show a bar while something runs that says how far it is."""
    with phases(unit) as report:
        yield partial(report, what)


def fitted(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, subject: str = "", width: int | None = None
) -> list[Table]:
    """Lay out a table; one wider than the terminal goes on below, its first column repeated. No word is cut."""
    widths = [max(map(len, (*header[i].split(), *(row[i] for row in rows)))) + 3 for i in range(len(header))]
    parts = [[0]]
    for column in range(1, len(header)):
        if len(parts[-1]) > 1 and sum(widths[i] for i in (*parts[-1], column)) + 1 > (width or console.width):
            parts.append([0])
        parts[-1].append(column)
    tables: list[Table] = []
    for part in parts:
        table = Table(title=None if tables else title, title_justify="left")
        for column in part:
            table.add_column(header[column], justify="right" if column else "left", width=widths[column] - 3)
        for row in rows:
            table.add_row(*(escape(row[i]) for i in part), style="bold blue" if row[0] == subject else "")
        tables.append(table)
    return tables


def show_check(check: "Check") -> None:
    """Print what each way earned and takes, and how to choose otherwise. It fits 80 columns."""
    own, taken = float(np.mean(check.alone)), check.taken
    table = Table(
        title=f"self-check on {check.rows} held rows of {len(check.tasks)} tasks", title_justify="left", box=None,
        padding=(0, 2, 0, 0),
    )  # fmt: skip
    table.add_column("")
    for name in ("memory", "reward", "kept"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("weakest task", overflow="fold")
    table.add_row("  experts alone, told the task", decimal(check.alone_bytes), f"{own:.3f}")
    if check.base:
        table.add_row("  the base alone, told the task", "", f"{np.mean(check.base):.3f}")
    for way in check.ways:
        kept = np.array(way.rewards) / np.maximum(check.alone, 1e-9)
        worst = int(kept.argmin())
        name = f"{way.models} models" if way.models > 1 else "one model"
        table.add_row(
            f"{'▸' if way == taken else ' '} {name}, {way.method}", decimal(way.bytes), f"{way.reward:.3f}",
            f"{way.reward / max(own, 1e-9):.0%}", escape(f"{check.tasks[worst]} {way.rewards[worst]:.3f}"),
            style="bold" if way == taken else "",
        )  # fmt: skip
    console.print(table)
    console.print(
        check.advice or "▸ is served: the smallest within a point of the best. Others: --models, --memory, --method; "
        "--unmerged for experts as they are.", soft_wrap=False,
    )  # fmt: skip
