"""`tanbr traffic`: a stream of requests for a server that is running."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from tanbr.cli.display import RECENT, bars, console, progress
from tanbr.cli.running import command_line
from tanbr.cli.sending import LOCAL, Server
from tanbr.files import write_atomically
from tanbr.lab.tasks import traffic as streams

if TYPE_CHECKING:
    from tanbr.lab.drive import Drive
    from tanbr.tasks.rows import Row

app = typer.Typer()
TRAFFIC_SEED = 4_000  # of generated rows that neither training nor the demo uses
POOL = 600  # rows per task that requests are drawn from


@app.command(
    epilog="Examples:\n\n    tanbr traffic\n\n    tanbr traffic --traffic switching --slots 200 --out traffic.json\n\n"
    "    tanbr traffic --rate 50    # texts per second\n\n    tanbr traffic --data glue/ --server http://10.0.0.7:8000"
)
def traffic(
    slots: Annotated[int, typer.Option(min=1, help="How many slots of requests to send.")] = 100,
    requests: Annotated[int, typer.Option(min=1, help="Requests in a slot.")] = 64,
    kind: Annotated[
        str, typer.Option("--traffic", help=f"How the task mix moves: {', '.join(streams.KINDS)}.")
    ] = "dirichlet",
    alpha: Annotated[float, typer.Option(help="How even the mixes are; a small value means one task at a time.")] = 0.1,
    period: Annotated[int, typer.Option(min=1, help="Slots from one drawn mix to the next.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mixes and of the requests.")] = 0,
    data: Annotated[
        Path | None, typer.Option(help="GLUE's folder, or your own files. Default: the generated tasks.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts in one HTTP request.")] = 16,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Most texts per second. Default: as fast as they are answered.")
    ] = None,
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of the answers that get feedback.")] = 1.0,
    tagged: Annotated[
        bool, typer.Option("--tagged", help="Name the task in the feedback (never in requests).")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File for the figures, as JSON.")] = None,
    server: Server = LOCAL,
) -> None:
    """Send a server untagged requests that drift, and feedback by the true labels, which it never sees."""
    from tanbr.lab.corpus import Dataset
    from tanbr.lab.drive import drive, summary
    from tanbr.lab.tasks import tiny
    from tanbr.serve.web.client import Client
    from tanbr.tasks.metrics import LabelSpace

    source = None if data is None else Dataset(str(data))
    tasks = tiny.TASKS if source is None else source.tasks
    mixes = streams.mixes(kind, tasks=len(tasks), slots=slots, seed=seed, alpha=alpha, period=period)
    if source is None:
        pools: Mapping[str, Sequence[Row]] = {
            task.name: tiny.generate(task.name, POOL, seed=TRAFFIC_SEED + seed, split="test") for task in tasks
        }
    else:
        pools = source.dev(seed=seed)
    stream = streams.Traffic(pools=pools, mixes=mixes, requests=requests, seed=seed)
    if out is not None:
        write_atomically(out, "{}\n")  # a place that cannot be written to is better found out now
    driven: list[Drive] = []
    with (
        Client(server, token=os.environ.get("TANBR_TOKEN")) as client,
        TrafficDisplay(slots=slots, tasks=[task.name for task in tasks]) as show,
    ):
        space = LabelSpace(tasks)
        for one in drive(client, stream, space=space, batch=batch, rate=rate, share=share, tagged=tagged, seed=seed):
            driven.append(one)
            show(driven)
    figures = summary(driven, tail=min(RECENT, slots))
    console.print(
        f"reward {figures['reward']:.3f} over {slots} slots, {figures['tail_reward']:.3f} over the last "
        f"{figures['tail']}; {figures['texts_per_second']:.0f} texts a second; "
        f"{figures['feedback_accepted']} rewards taken; merge version {figures['merge_version']}"
    )
    if out is not None:
        write_atomically(out, json.dumps({"command": command_line(), "seed": seed, **figures}, indent=2) + "\n")
        console.print(f"figures: {out}")


class TrafficDisplay:
    """Live panels: the true mix beside the one the server expects, what it serves, and what it earns."""

    def __init__(self, *, slots: int, tasks: list[str]) -> None:
        self._slots, self._tasks = slots, tasks
        self._progress = progress("slots")
        self._bar = self._progress.add_task("sending", total=slots, note="")
        self._live = Live(self._progress, console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> "TrafficDisplay":
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(*error)  # type: ignore[arg-type]

    def __call__(self, driven: "list[Drive]") -> None:
        """Show the stream so far."""
        self._progress.update(self._bar, completed=len(driven))
        if console.is_terminal:
            self._live.update(Group(self.panels(driven), self._progress))
        elif len(driven) % max(1, self._slots // 10) == 0:
            recent, speed = _earned(driven)
            console.print(f"slot {len(driven):4d}/{self._slots}  reward {recent:.3f}  {speed:.0f} texts a second")

    def panels(self, driven: "list[Drive]") -> RenderableType:
        """Lay the panels out: beside each other where there is room, else below."""
        return Columns([self._mixes(driven[-1]), self._blend(driven[-1]), self._figures(driven)])

    def _mixes(self, last: "Drive") -> RenderableType:
        if last.state["tasks"] == self._tasks:
            return bars("task mix ψ (expected | true)", self._tasks, np.array(last.state["task_mix"]), last.mix)
        return bars("task mix (true)", self._tasks, last.mix)

    def _blend(self, last: "Drive") -> RenderableType:
        blend = np.array(last.state["blend"])
        return bars("blend x", last.state["model"]["expert_names"], blend)

    def _figures(self, driven: "list[Drive]") -> RenderableType:
        last, (recent, speed) = driven[-1], _earned(driven)
        table = Table.grid(padding=(0, 2))
        for name, value in (
            (f"reward, last {RECENT}", f"{recent:.3f}"),
            ("texts a second", f"{speed:.0f}"),
            ("server's slot", str(last.state["slot"])),
            ("merge version", str(last.state["merge_version"])),
            ("alarms", str(len(last.state["alarms"]))),
        ):
            table.add_row(name, value)
        return Panel(table, title="server", title_align="left")


def _earned(driven: "list[Drive]") -> tuple[float, float]:
    """Mean reward of the last slots, and texts a second of the last one."""
    recent = float(np.mean([one.rewards.mean() for one in driven[-RECENT:]]))
    return recent, len(driven[-1].rewards) / driven[-1].seconds
