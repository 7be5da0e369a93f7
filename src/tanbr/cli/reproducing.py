"""`tanbr reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from tanbr.cli.display import console, progress
from tanbr.cli.options import command_line, examples

if TYPE_CHECKING:
    from tanbr.lab.jobs import Kept

app = typer.Typer()


@app.command(
    epilog=examples(
        "tanbr reproduce all    # on the embedded models, in minutes",
        "tanbr reproduce fig4 fig5 --scale small --model out/minilm/model --data glue/",
    )
)
def reproduce(
    parts: Annotated[
        list[str] | None, Argument(help="table1, fig2 to fig7, table2, theorem1, or all.", metavar="PARTS")
    ] = None,
    scale: Annotated[str, Option(help="tiny: minutes. small: real models, hours. paper: as published.")] = "tiny",
    out: Annotated[Path, Option(help="Folder for the report; results there are kept.")] = Path("out/reproduce"),
    model: Annotated[Path | None, Option(help="Folder of a BERT-MoE. At tiny: the embedded one.")] = None,
    t5: Annotated[Path | None, Option("--t5", help="Folder of a T5-MoE. At tiny: the embedded one.")] = None,
    data: Annotated[Path | None, Option(help="GLUE's folder. At tiny: the generated tasks.")] = None,
    tagged: Annotated[bool, Option("--tagged", help="The T5's texts name their task, as the paper's do.")] = False,
) -> None:
    """Reproduce the paper's tables and figures, and report claim by claim what holds. Resumes where it stopped."""
    import torch

    from tanbr.lab.paper import reproduction
    from tanbr.lab.paper.setup import Setup
    from tanbr.lab.paper.setup import scale as named

    torch.set_num_threads(1)  # as the jobs run
    wanted = reproduction.chosen(parts or [])
    setup = Setup(named(scale), out, model=model, t5=t5, data=data, tagged=tagged)
    with progress() as bars:
        every, one = bars.add_task("all jobs", total=None, note=""), bars.add_task("", total=1, note="")

        def begun(jobs: int) -> None:
            bars.update(every, total=jobs)

        def moved(name: str, done: int, total: int, note: str) -> None:
            bars.update(one, description=name, completed=done, total=total, note=note)

        def finished(name: str, kept: "Kept", was_there: bool) -> None:
            bars.advance(every)
            if not was_there:
                bars.console.print(f"{name:32} {kept.seconds:7.1f} s", markup=False)

        found = reproduction.reproduce(wanted, setup, begun=begun, moved=moved, finished=finished)
    for part in found.parts:
        console.print(f"[bold]{part.title}[/]")
        for claim in found.findings[part.name].claims:
            said = f"  {reproduction.VERDICTS[claim.holds][1]:<22} {claim.says}: paper {claim.paper}; here {claim.ours}"
            console.print(said, markup=False, soft_wrap=True)
    if found.of_others:
        anew = f"delete them in {found.setup.out}/jobs or choose another --out to measure anew"
        console.print(f"note: {found.of_others}; {anew}", markup=False, soft_wrap=True)
    console.print(f"report: {reproduction.write(found, command=command_line())}")
