"""`tanbr simulate` and `tanbr survey`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import TaskID

from tanbr.cli.display import console, fitted, progress
from tanbr.cli.merging import BlendWhat, ExpertFolders
from tanbr.cli.running import DEVICE, ConfigFile, command_line
from tanbr.cli.stopping import keeps
from tanbr.errors import ConfigError
from tanbr.lab import settings as configuration
from tanbr.lab.tasks import traffic as traffics
from tanbr.types import AnswersBy

if TYPE_CHECKING:
    from tanbr.lab.simulate import Outcome

app = typer.Typer()

Checkpoint = Annotated[
    Path | None,
    typer.Argument(help="Folder of the MoE checkpoint, or a list of experts. Default: the embedded model."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="GLUE's folder, or your own files (CSV, JSONL, Parquet, tasks.toml). Default: the generated tasks."
    ),
]
MergeMethod = Annotated[
    str | None,
    typer.Option(help="How to merge: average, regression, ties, … Default: as the list says, or average."),
]
DEFAULT_METHODS = "tanbr,average,best-fixed,random,best-per-slot"


@app.command(
    epilog="Examples:\n\n    tanbr simulate\n\n"
    "    tanbr simulate glue-moe/ --data glue/ --methods tanbr,tanbr+survey,average,nucb --seeds 0,1,2 --workers 2\n\n"
    "    tanbr simulate experts.toml --data mytasks/ --methods tanbr,average"
)
@keeps("runs that had ended are in {out}/runs; the same command goes on with the others")
def simulate(
    checkpoint: Checkpoint = None,
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    data: Data = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Names, separated by commas, dense:FOLDER, or package.module:Router. Add +probes, +survey or +oracle "
            "to one that learns, and +regression, +ties, … to one that blends."
        ),
    ] = DEFAULT_METHODS,
    method: MergeMethod = None,
    traffic: Annotated[
        str, typer.Option(help=f"How the task mix moves: {', '.join(traffics.KINDS)}; or trace:FILE.")
    ] = "dirichlet",
    alpha: Annotated[float, typer.Option(help="How even the mixes are; a small value means one task at a time.")] = 0.3,
    period: Annotated[int, typer.Option(min=1, help="Slots from one drawn mix to the next.")] = 40,
    slots: Annotated[int, typer.Option(min=1, help="How many slots to serve.")] = 200,
    requests: Annotated[int, typer.Option(min=1, help="Requests in a slot.")] = 64,
    pool: Annotated[int, typer.Option(min=1, help="Draw requests from at most this many rows per task.")] = 1_500,
    seeds: Annotated[str, typer.Option(help="Seeds of stream, monitor and routers, separated by commas.")] = "0",
    models: Annotated[
        str, typer.Option(help="Sizes G of panels to try, separated by commas; for routers and fixed panels.")
    ] = "1",
    oracle_mix: Annotated[bool, typer.Option("--oracle-mix", help="Tell every router the true mix.")] = False,
    warm_start: Annotated[
        Literal["none", "probes", "survey"],
        typer.Option(help="What routers learn from before the first slot: K+1 probes, or all surveyed blends."),
    ] = "none",
    survey: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="File from `tanbr survey`. Default: survey.json beside the weights."
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File from `tanbr groups`, for the method `grouped`."),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Draw requests from held-back train rows and leave GLUE's dev sets alone."),
    ] = False,
    answers: Annotated[
        AnswersBy,
        typer.Option(
            help="A head's best label, plain or weighed by the monitor's posterior; the same for every method."
        ),
    ] = "labels",
    record: Annotated[Path | None, typer.Option(help="Also write the first seed's stream to this file.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes, with one thread each.")] = 1,
    device: Annotated[str, DEVICE] = "cpu",
    config: ConfigFile = None,
    out: Annotated[Path, typer.Option(help="Folder for results; existing results are not run again.")] = Path(
        "out/simulate"
    ),
) -> None:
    """Compare methods on one stream of untagged requests. Resumes where it stopped."""
    counts = _numbers(models, option="--models", least=1)
    numbers = _numbers(seeds, option="--seeds", least=0)
    if not traffic.startswith("trace:"):
        traffics.check(traffic, slots=slots, alpha=alpha, period=period)
    configuration.load(config)  # what can be refused at once is, before seconds of imports

    from tanbr.lab import methods as registry
    from tanbr.lab.panel import memory
    from tanbr.lab.report import lay_out, write
    from tanbr.lab.simulate import Study
    from tanbr.lab.simulate import simulate as run
    from tanbr.lab.standings import Standings
    from tanbr.merge import open as open_moe
    from tanbr.moe import embedded

    folder = checkpoint or embedded.path()
    study = Study(
        checkpoint=folder, experts=tuple(expert or ()), blend_only=blend_only, data=data, traffic=traffic, alpha=alpha,
        period=period, slots=slots, requests=requests, pool=pool, rehearse=rehearse,
        survey=survey or (None if expert else folder / "survey.json"), config=config, answers=answers,
        groups=groups, device=device,
    )  # fmt: skip
    asked = registry.methods(
        methods.split(","), warm_start=warm_start, oracle=oracle_mix, models=counts, merging=method or study.merging
    )
    names = [one.name for one in asked]
    corpus = study.corpus()
    streams = {seed: study.stream(corpus, seed) for seed in numbers}
    if record is not None:
        traffics.record_trace(record, streams[numbers[0]], tasks=corpus.tasks)
    with _Watch(jobs=len(names) * len(numbers), slots=len(streams[numbers[0]])) as watch:
        outcomes = run(study, names, numbers, out=out, workers=workers, watch=watch, finished=watch.finished)
    mixes = {seed: stream.mixes for seed, stream in streams.items()}
    standings = Standings.of(outcomes, tasks=[task.name for task in corpus.tasks], mixes=mixes)
    for title, header, cells in lay_out(standings):
        console.print(*fitted(title, header, cells, subject=standings.subject), sep="\n")
    moe = open_moe(folder, experts=expert or (), blend_only=blend_only, method=registry.AVERAGE)
    written = write(
        out, standings, command=command_line(), facts=outcomes[0].facts, memory=lambda count: memory(moe, count) / 1e6
    )
    console.print(f"figures: {written}")


@app.command(
    epilog="Examples:\n\n    tanbr survey\n\n"
    "    tanbr survey glue-moe/ --data glue/ --blends 120 --rows 60 --out survey.json\n\n"
    "    tanbr survey bert/ --expert sst2/ --expert mnli/ --data mytasks/"
)
@keeps("what was measured is in {out}.partial; the same command goes on")
def survey(
    checkpoint: Checkpoint = None,
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    data: Data = None,
    blends: Annotated[
        int, typer.Option(min=1, help="How many blends to try: of 8 experts at most 180, or 255 with --groups.")
    ] = 120,
    rows: Annotated[int, typer.Option(min=2, help="Held-back rows per task.")] = 60,
    searched: Annotated[int, typer.Option(min=0, help="How many of the blends are found by search.")] = 0,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Use the half of the held-back rows that `simulate --rehearse` does not use."),
    ] = False,
    method: MergeMethod = None,
    groups: Annotated[
        bool,
        typer.Option("--groups", help="Try even blends of subsets of the experts, small ones first; for fixed panels."),
    ] = False,
    answers: Annotated[
        AnswersBy, typer.Option(help="A head's best label, plain or weighed by the monitor's posterior.")
    ] = "labels",
    regression: Annotated[bool, typer.Option("--regression", hidden=True)] = False,
    device: Annotated[str, DEVICE] = "cpu",
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("out/survey.json"),
) -> None:
    """Measure what a checkpoint's blends earn on held-out rows. Resumes where it stopped."""
    import torch

    from tanbr.lab.simulate import Study
    from tanbr.lab.survey import survey_to
    from tanbr.moe import embedded

    torch.set_num_threads(1)
    study = Study(
        checkpoint=checkpoint or embedded.path(), experts=tuple(expert or ()), blend_only=blend_only, data=data,
        rehearse=rehearse, device=device,
    )  # fmt: skip
    bench = study.bench().merging("regression" if regression else method or study.merging)
    least = bench.moe.num_experts + 1
    if blends - searched < least:
        raise ConfigError(
            f"a survey holds each of the {least - 1} experts alone and all of them alike (got {blends - searched} "
            f"blends that are not searched); give --blends {least + searched} or more"
        )
    with progress("blends") as bar:
        line = bar.add_task("surveying", total=blends, note="")
        found = survey_to(
            out, bench.moe, bench.corpus, blends=blends, rows=rows, searched=searched, command=command_line(),
            groups=groups, answers_by=answers,
            report=lambda done, total: bar.update(line, completed=done, total=total),
        )  # fmt: skip
    K = bench.moe.num_experts
    best = found.rewards.mean(axis=1).argmax()
    shown = [found.figures[:K].max(axis=0), found.figures[K], found.figures[best]]  # (V,)
    rows_of = [[task.name, *(f"{of[v]:.3f}" for of in shown)] for v, task in enumerate(bench.corpus.tasks)]
    header = ["task", "best expert alone", "even blend", "best fixed blend"]
    console.print(*fitted("the task's metric", header, rows_of), sep="\n")
    for alpha in (0.1, 0.3, 1.0):
        stakes = found.stakes(alpha)
        console.print(
            f"Dirichlet({alpha}): best per mix {stakes['best_per_mix']:.3f}, best fixed {stakes['best_fixed']:.3f}, "
            f"even {stakes['uniform']:.3f}"
        )
    console.print(f"survey: {out}")


@app.command(
    epilog="Examples:\n\n    tanbr grams glue-moe/ --data glue/\n\n    tanbr serve glue-moe/ --method regression\n\n"
    "    tanbr grams experts.toml --data mytasks/ && tanbr serve experts.toml --method regression"
)
@keeps("nothing was written; run it again")
def grams(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Folder of an MoE checkpoint with one expert per task, or a list of experts that names their tasks."
        ),
    ],
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    data: Data = None,
    rows: Annotated[int, typer.Option(min=2, help="Held-back rows per task.")] = 64,
    merged: Annotated[
        bool, typer.Option("--merged", help="Measure after layers that are already merged, for --method regmeanpp.")
    ] = False,
    device: Annotated[str, DEVICE] = "cpu",
) -> None:
    """Measure each expert's inputs for regression merging, and write them to a folder beside the experts."""
    import torch

    from tanbr.lab.answers import DenseModel
    from tanbr.lab.rivals.probes import probes_of
    from tanbr.lab.rivals.regmean import measure
    from tanbr.lab.simulate import Study

    torch.set_num_threads(1)
    bench = Study(
        checkpoint=checkpoint, experts=tuple(expert or ()), blend_only=blend_only, data=data, device=device
    ).bench()
    DenseModel(bench.moe, bench.corpus.space)  # its head must fit
    held = bench.corpus.first_held(rows)
    probes = probes_of(bench.moe, held, space=bench.corpus.space, own=bench.own_experts)
    with progress("experts") as bar:
        line = bar.add_task("measuring", total=bench.moe.num_experts, note="")
        written = measure(
            bench.moe, probes, rows=rows, merged=merged, report=lambda done: bar.update(line, completed=done)
        )
    size = sum(file.stat().st_size for file in written.iterdir())
    console.print(f"grams: {written} ({size / 1e6:.0f} MB)")


class _Watch:
    """A bar for all jobs and one for each that runs; a line for each that is done where there is no terminal."""

    def __init__(self, *, jobs: int, slots: int) -> None:
        self._bars = progress()
        self._slots = slots
        self._all = self._bars.add_task("all runs", total=jobs, note="")
        self._running: dict[tuple[int, str], TaskID] = {}

    def __enter__(self) -> "_Watch":
        self._bars.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.__exit__(*error)  # type: ignore[arg-type]

    def __call__(self, seed: int, method: str, done: int, reward: float) -> None:
        """Show how far a job is."""
        job = seed, method
        if job not in self._running:
            self._running[job] = self._bars.add_task(f"{method} (seed {seed})", total=self._slots, note="")
        self._bars.update(self._running[job], completed=done, note=f"reward {reward:.3f}")

    def finished(self, outcome: "Outcome", was_there: bool) -> None:
        """Show that a job is done."""
        bar = self._running.pop((outcome.seed, outcome.method), None)
        if bar is not None:
            self._bars.remove_task(bar)
        self._bars.advance(self._all)
        reward = sum(r.total_reward for r in outcome.records) / len(outcome.records)
        how = "kept" if was_there else f"{outcome.seconds / len(outcome.records):.2f} s a slot"
        self._bars.console.print(f"{outcome.method:18} seed {outcome.seed}   reward {reward:.3f}   {how}")


def _numbers(text: str, *, option: str, least: int) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise ConfigError(f"{option} must be whole numbers from {least}, as {least},{least + 1} (got {text!r})")
    return list(dict.fromkeys(numbers))
