"""`tanbr reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tanbr.cli.display import console, fitted, progress
from tanbr.cli.running import DEVICE, command_line
from tanbr.cli.stopping import keeps

if TYPE_CHECKING:
    from tanbr.lab.paper.cost import Speed
    from tanbr.lab.paper.job import Job, Kept
    from tanbr.lab.paper.reproduction import Reproduction

app = typer.Typer()


@app.command(
    epilog="Examples:\n\n    tanbr reproduce all    # on the embedded models, in minutes\n\n"
    "    tanbr reproduce table1 fig6 --out out/two\n\n"
    "    tanbr reproduce fig4 fig5 --scale small --model out/minilm/model --data glue/\n\n"
    "    tanbr reproduce all --scale paper --dry-run"
)
@keeps("what was measured is in {out}/jobs; the same command goes on with the rest")
def reproduce(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="table1, fig2, fig3, table2, fig4, fig5, fig6, fig7, theorem1, or all.", metavar="PARTS"),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="tiny: embedded models, minutes. small: real models and GLUE, hours. paper: as published."),
    ] = "tiny",
    out: Annotated[Path, typer.Option(help="Folder for the report; existing results are not run again.")] = Path(
        "out/reproduce"
    ),
    model: Annotated[Path | None, typer.Option(help="Folder of a BERT-MoE. At tiny: the embedded one.")] = None,
    t5: Annotated[Path | None, typer.Option("--t5", help="Folder of a T5-MoE. At tiny: the embedded one.")] = None,
    data: Annotated[Path | None, typer.Option(help="GLUE's folder. At tiny: the generated tasks.")] = None,
    tagged: Annotated[
        bool, typer.Option("--tagged", help="The T5's texts name their task, as the paper's do.")
    ] = False,
    device: Annotated[str, DEVICE] = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate time, memory and disk.")] = False,
) -> None:
    """Reproduce the paper's tables and figures, and report claim by claim what holds. Resumes where it stopped."""
    import torch

    from tanbr.lab.paper import cost, report, reproduction
    from tanbr.lab.paper.parts import chosen
    from tanbr.lab.paper.scale import Setup
    from tanbr.lab.paper.scale import scale as named

    torch.set_num_threads(1)  # as the jobs run
    wanted = chosen(parts or [])
    setup = Setup(named(scale), out, model=model, t5=t5, data=data, tagged=tagged, device=device)
    if dry_run:
        rows = reproduction.estimate(wanted, setup, speed=cost.measure())
        cells = [
            [one.part, f"{one.missing} of {one.jobs}", _time(one.seconds), _size(one.memory), _size(one.disk)]
            for one in rows
        ]
        whole = sum(one.seconds for one in rows), max(one.memory for one in rows), sum(one.disk for one in rows)
        cells.append(["all", str(sum(one.missing for one in rows)), _time(whole[0]), _size(whole[1]), _size(whole[2])])
        title = (
            f"scale {scale}: time on one quiet core of this machine, memory above that of a process that does nothing; "
            "a job that several parts share counts once"
        )
        console.print(*fitted(title, ["part", "jobs to run", "time", "memory", "disk"], cells), sep="\n")
        return
    for part in wanted:
        setup.check(part.needs, part.name)
    todo = [job for jobs in reproduction.missing(wanted, setup).values() for job in jobs]
    with _Bars(todo, cost.measure()) as watch:
        found = reproduction.reproduce(wanted, setup, watch=watch)
    _say(found)
    console.print(f"report: {report.write(found, command=command_line())}")


def _say(found: "Reproduction") -> None:
    for part in found.parts:
        claims = found.findings[part.name].claims
        rows = [[claim.judgement.verdict, claim.says, claim.paper, claim.ours] for claim in claims]
        console.print(f"[bold]{part.title}[/]")
        for verdict, says, paper, ours in rows:
            console.print(f"  {verdict:<22} {says}: paper {paper}; here {ours}", markup=False, soft_wrap=True)
    if found.of_others:
        anew = f"delete them in {found.setup.out}/jobs or choose another --out to measure anew"
        console.print(f"note: {found.of_others}; {anew}", markup=False, soft_wrap=True)


class _Bars:
    """A bar for all jobs, by their estimated time, and one for the job that runs; a line for each that is done."""

    def __init__(self, jobs: "list[Job]", speed: "Speed") -> None:
        self._expected = {job.name: max(0.05, speed.seconds(job.cost)) for job in jobs}
        self._bars = progress()
        self._all = self._bars.add_task("all jobs (s)", total=round(sum(self._expected.values()), 1), note="")
        self._one = self._bars.add_task("", total=1, note="", visible=False)
        self._done = 0.0

    def __enter__(self) -> "_Bars":
        self._bars.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bars.__exit__(*error)

    def started(self, job: "Job") -> None:
        """Show the job that runs."""
        self._bars.reset(self._one, total=1, description=job.name, visible=True, note="")

    def moved(self, job: "Job", done: int, total: int, note: str) -> None:
        """Show how far it is."""
        self._bars.update(self._one, completed=done, total=total, note=note)
        share = done / total if total else 0.0
        self._bars.update(self._all, completed=round(self._done + share * self._expected[job.name], 1))

    def finished(self, job: "Job", kept: "Kept", *, was_there: bool) -> None:
        """Show that a job is done."""
        if was_there:
            return
        self._done += self._expected[job.name]
        self._bars.update(self._all, completed=round(self._done, 1))
        self._bars.console.print(f"{job.name:32} {kept.seconds:7.1f} s", markup=False)


def _time(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _size(count: float) -> str:
    if not count:
        return "–"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
