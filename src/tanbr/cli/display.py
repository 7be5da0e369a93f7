"""What a person sees while something long runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tanbr.types import FloatArray

if TYPE_CHECKING:  # torch is not needed to show help
    from tanbr.lab.compare import Comparison
    from tanbr.lab.tasks.traffic import SlotRequests

console = Console(highlight=False)
RECENT = 20  # slots that a moving figure averages


def progress(unit: str = "") -> Progress:
    """Make a progress bar with counts, elapsed and remaining time, and a field `note`."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
        console=console,
    )  # fmt: skip


class SlotDisplay:
    """Live panels of a comparison: ψ, x, reward and regret, slot by slot."""

    def __init__(self, *, slots: int, tasks: Sequence[str], subject: str) -> None:
        self._tasks, self._subject, self._slots = tasks, subject, slots
        self._progress = progress("slots")
        self._bar = self._progress.add_task("serving", total=slots, note="")
        self._live = Live(self._progress, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> "SlotDisplay":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def __call__(self, so_far: "Comparison", slot: "SlotRequests") -> None:
        """Show the comparison after a slot."""
        records = so_far.records[self._subject]
        self._progress.update(self._bar, completed=len(records))
        if console.is_terminal:
            last = records[-1]
            mix = bars("task mix ψ (forecast | true)", self._tasks, last.task_mix, slot.mix)
            blend = bars("blend x", [f"expert {k}" for k in range(len(last.blend))], last.blend)
            panels = Columns([mix, blend, _standings(so_far)])  # beside each other as far as there is room
            self._live.update(Group(panels, self._progress))
        elif len(records) % max(1, self._slots // 10) == 0:
            console.print(
                f"slot {len(records):4d}/{self._slots}  " + "  ".join(_standing_words(so_far)), soft_wrap=True
            )


def bars(title: str, names: Sequence[str], values: FloatArray, beside: FloatArray | None = None) -> RenderableType:
    """Draw shares as bars, with other shares beside them as numbers."""
    table = Table.grid(padding=(0, 1))
    for i, name in enumerate(names):
        cells: list[RenderableType] = [name, Bar(1.0, 0, float(values[i]), width=14, color="blue"), f"{values[i]:.2f}"]
        if beside is not None:
            cells.append(f"[dim]{beside[i]:.2f}[/]")
        table.add_row(*cells)
    return Panel.fit(table, title=title, title_align="left")


def _standings(so_far: "Comparison") -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_row("", f"[dim]last {RECENT}[/]", "[dim]regret[/]")
    for method in so_far.records:
        recent = float(so_far.rewards(method)[-RECENT:].mean())
        style = "bold blue" if method == next(iter(so_far.records)) else ""
        table.add_row(method, f"{recent:.3f}", f"{so_far.regret(method)[-1]:.1f}", style=style)
    return Panel.fit(table, title="reward", title_align="left")


def _standing_words(so_far: "Comparison") -> list[str]:
    return [f"{method} {np.mean(so_far.rewards(method)[-RECENT:]):.3f}" for method in so_far.records]


def standings_tables(so_far: "Comparison", *, tail: int) -> list[Table]:
    """Lay out the final figures."""
    header = ["method", f"last {tail} slots", "all slots", "regret per slot", f"… last {tail}", "merges"]
    rows = [
        [
            method,
            f"{row['tail_reward']:.3f} ± {row['tail_reward_se']:.3f}",
            f"{row['reward']:.3f} ± {row['reward_se']:.3f}",
            f"{row['regret_per_slot']:.3f}",
            f"{row['tail_regret_per_slot']:.3f}",
            str(row["merges"]),
        ]
        for method, row in so_far.summary(tail=tail).items()
    ]
    title = f"reward in [0, 1] (± one standard error over slots), regret against “{so_far.best}”"
    return fitted(title, header, rows, subject=next(iter(so_far.records)))


def fitted(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, subject: str = "", width: int | None = None
) -> list[Table]:
    """Lay out a table; one wider than the terminal goes on below, its first column repeated. No word is cut."""
    widths = [
        max([*map(len, heading.split()), *(len(row[column]) for row in rows)]) for column, heading in enumerate(header)
    ]
    parts: list[list[int]] = [[]]
    room = (width or console.width) - _taken(widths[:1])
    for column in range(1, len(header)):
        if parts[-1] and _taken([widths[i] for i in (*parts[-1], column)]) > room:
            parts.append([])
        parts[-1].append(column)
    tables = []
    for number, part in enumerate(parts):
        table = Table(title=title if number == 0 else None, title_justify="left")
        whole = {column: max(widths[column], len(header[column])) for column in part}
        roomy = _taken(list(whole.values())) <= room  # no heading needs a second line
        for column in (0, *part):
            wide = whole[column] if column and roomy else widths[column]
            table.add_column(header[column], justify="right" if column else "left", width=wide)
        for row in rows:
            table.add_row(*(escape(row[i]) for i in (0, *part)), style="bold blue" if row[0] == subject else "")
        tables.append(table)
    return tables


def _taken(widths: Sequence[int]) -> int:
    """How many characters columns take, with their padding and a line after each."""
    return sum(width + 3 for width in widths) + 1
