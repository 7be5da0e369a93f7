"""The self-check, as a person sees it: one table."""

from typing import TYPE_CHECKING

import numpy as np
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from tanbr.cli.display import console

if TYPE_CHECKING:
    from tanbr.serve.check import Check


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
    table.add_row("  experts alone, told the task", decimal(check.alone_bytes), f"{own:.3f}", "", "")
    if check.base:
        table.add_row("  the base alone, told the task", "", f"{np.mean(check.base):.3f}", "", "")
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
