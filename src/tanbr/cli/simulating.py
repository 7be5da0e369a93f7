"""`tanbr demo`, `tanbr simulate` and `tanbr survey`: methods and blends on labelled rows, without a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from tanbr.cli import options
from tanbr.cli.display import bar, console, fitted, progress
from tanbr.errors import ConfigError
from tanbr.lab import settings as configuration
from tanbr.lab.tasks import traffic as traffics
from tanbr.serve.config import StartConfig
from tanbr.types import AnswersBy

if TYPE_CHECKING:
    from tanbr.lab.methods import Bench
    from tanbr.lab.simulate import Outcome
    from tanbr.lab.survey import Survey

app = typer.Typer()
NAMES = (
    "tanbr, paper, nucb, vector-gp, probing, random, proportional, average, base, similar, fisher, regmean, "
    "best-fixed, best-per-slot, task-merging, tags, untagged"
)
DEFAULT_METHODS = "tanbr,average,best-fixed,random,best-per-slot"
GRAM_ROWS = 64  # per task, as for the figures in docs/merging.md

Answers = Annotated[AnswersBy, Option(help="A head's best label, plain or weighed by the monitor's posterior.")]


@app.command(
    epilog=options.examples("tanbr demo", "tanbr demo --traffic switching --slots 400 --seed 3 --out out/switching")
)
def demo(
    model: Annotated[Literal["bert", "t5"], Option(help="Embedded model: bert classifies, t5 writes.")] = "bert",
    out: Annotated[Path, Option(help="Folder for report.html and demo.json.")] = Path("out/demo"),
    slots: Annotated[int, Option(min=20, help="Number of slots.")] = 300,
    requests: Annotated[int, Option(min=8, help="Requests in a slot.")] = 64,
    kind: options.Kind = "dirichlet",
    alpha: options.Alpha = 0.1,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    config: options.ConfigFile = None,
) -> None:
    """Watch the whole idea work: untagged, drifting traffic on the embedded model, one merged model and two."""
    traffics.check(kind, slots=slots, alpha=alpha)  # what can be refused at once is, before seconds of imports
    settings = configuration.load(config)

    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    from tanbr.lab import demo as experiment
    from tanbr.lab.report import lay_out
    from tanbr.merge import open as open_moe
    from tanbr.moe import embedded

    torch.set_num_threads(1)  # a model this small is no faster on more, and far slower when they are busy
    moe = open_moe(embedded.path(model), device=device)
    with threadpool_limits(1), progress("methods") as shown:  # the router's matrices are small, too
        line = shown.add_task("serving", total=len(experiment.METHODS), note="")

        def moved(name: str, done: int, _: int, note: str) -> None:
            shown.update(line, note=f"{name}: slot {done} of {slots}, {note}")

        def finished(outcome: "Outcome") -> None:
            shown.advance(line)
            shown.console.print(_said(outcome))

        standings, facts = experiment.run(
            moe, out=out, config=settings, slots=slots, requests=requests, kind=kind, alpha=alpha, seed=seed,
            moved=moved, finished=finished, command=options.command_line(),
        )  # fmt: skip
    title, header, cells = next(lay_out(standings))
    console.print(*fitted(title, header, cells, subject=standings.subject), sep="\n")
    for fact, words in facts.items():
        if " above " in fact:
            console.print(f"{fact}: {words}")
    console.print(f"report: {out / 'report.html'}\nfigures: {out / 'demo.json'}")


def _said(outcome: "Outcome") -> str:
    slots = len(outcome.records)
    reward, seconds = sum(record.total_reward for record in outcome.records) / slots, outcome.seconds / slots
    return f"{outcome.method:18} seed {outcome.seed}   reward {reward:.3f}   {seconds:.2f} s a slot"


@app.command(
    epilog=options.examples(
        "tanbr simulate glue-moe/ --data glue/ --methods tanbr,tanbr+survey,average,nucb --seeds 0,1,2",
        "tanbr simulate --methods mymodule:Router,tanbr,proportional",
    )
)
@options.options_of(StartConfig, "over", "experts blend_only")
def simulate(
    *,
    checkpoint: options.Checkpoint = None,
    over: options.Given,
    data: options.Data = None,
    methods: Annotated[
        str | None,
        Option(
            help=f"Separated by commas: {NAMES}; dense:FOLDER; or module:Router, a class of yours with ask and tell. "
            "Add +probes, +survey or +oracle to one that learns, and +regression, +ties, … to one that blends. "
            f"Default: {DEFAULT_METHODS}."
        ),
    ] = None,
    method: options.MergeMethod = None,
    traffic: options.Kind = "dirichlet",
    alpha: options.Alpha = 0.3,
    period: options.Period = 40,
    slots: options.Slots = 200,
    requests: options.Requests = 64,
    newcomer: Annotated[str | None, Option(help="Task that comes after the first period only, then often.")] = None,
    pool: Annotated[int, Option(min=1, help="Draw requests from at most this many rows per task.")] = 1_500,
    seeds: Annotated[str, Option(help="Seeds of stream, monitor and routers, separated by commas.")] = "0",
    models: Annotated[str, Option(help="Sizes G of panels to try, separated by commas.")] = "1",
    survey: Annotated[Path | None, Option(help="As `tanbr survey --out`. Default: beside the weights.")] = None,
    rehearse: Annotated[bool, Option("--rehearse", help="Draw from held-back train rows, not from dev sets.")] = False,
    answers: Answers = "posterior",
    rewards: Annotated[Literal["labels", "rewards"], Option(help="What clients return.")] = "labels",
    card: Annotated[
        Literal["true", "none", "swapped"], Option(help="What routers hear of tasks and experts.")
    ] = "true",
    practice: Annotated[int, Option(min=0, help="Logged requests a slot that blends are tried on; 0 for none.")] = 320,
    disjoint: Annotated[bool, Option("--disjoint", help="Half of the rows teach, the others are measured.")] = False,
    precision: Annotated[Literal["fp32", "bf16"], Option(help="Of all models' arithmetic.")] = "fp32",
    device: options.Device = "cpu",
    config: options.ConfigFile = None,
    out: Annotated[Path, Option(help="Folder for results; existing results are not run again.")] = Path("out/simulate"),
) -> None:
    """Compare methods on one stream of untagged requests. Resumes where it stopped."""
    counts = options.whole_numbers(models, "--models", least=1)
    numbers = options.whole_numbers(seeds, "--seeds")
    traffics.check(traffic, slots=slots, alpha=alpha, period=period)
    configuration.load(config)  # what can be refused at once is, before seconds of imports

    from tanbr.lab import methods as registry
    from tanbr.lab.report import lay_out, write
    from tanbr.lab.simulate import Study
    from tanbr.lab.simulate import simulate as run
    from tanbr.lab.standings import Standings
    from tanbr.moe import embedded

    folder = checkpoint or embedded.path()
    study = Study(
        checkpoint=folder, **over, data=data, traffic=traffic, alpha=alpha, period=period, slots=slots,
        newcomer=newcomer, requests=requests, pool=pool, rehearse=rehearse, config=config, answers=answers,
        rewards=rewards, card=card, practice=practice, disjoint=disjoint, precision=precision, device=device,
        survey=survey or (None if over.get("experts") else folder / "survey.json"),
    )  # fmt: skip
    asked = registry.methods((methods or DEFAULT_METHODS).split(","), models=counts, merging=method or study.merging)
    names = [one.name for one in asked]
    corpus = study.corpus()
    with progress("runs") as shown:
        line = shown.add_task("simulating", total=len(names) * len(numbers), note="")

        def moved(name: str, done: int, total: int, note: str) -> None:
            shown.update(line, note=f"{name}: slot {done} of {total}, {note}")

        def finished(outcome: "Outcome", was_there: bool) -> None:
            shown.advance(line)
            shown.console.print(_said(outcome) + "   (kept)" * was_there)

        outcomes = run(study, names, numbers, out=out, moved=moved, finished=finished)
    mixes = {seed: study.stream(corpus, seed).mixes for seed in numbers}
    standings = Standings(outcomes, [task.name for task in corpus.tasks], mixes)
    for title, header, cells in lay_out(standings):
        console.print(*fitted(title, header, cells, subject=standings.subject), sep="\n")
    written = write(out, standings, command=options.command_line(), facts=outcomes[0].facts)
    console.print(f"figures: {written}")


@app.command(
    epilog=options.examples(
        "tanbr survey glue-moe/ --data glue/ --blends 120 --rows 60 --out survey.json",
        "tanbr survey glue-moe/ --data glue/ --grams regression && tanbr serve glue-moe/ --method regression",
    )
)
@options.options_of(StartConfig, "over", "experts blend_only")
def survey(
    *,
    checkpoint: options.Checkpoint = None,
    over: options.Given,
    data: options.Data = None,
    blends: Annotated[int, Option(min=1, help="Blends to try: of 8 experts at most 180, or 255 with --groups.")] = 120,
    rows: Annotated[int | None, Option(min=2, help="Held-back rows per task. Default: 60, grams 64.")] = None,
    rehearse: Annotated[bool, Option("--rehearse", help="Leave out the rows of `simulate --rehearse`.")] = False,
    method: options.MergeMethod = None,
    groups: Annotated[bool, Option("--groups", help="Try even blends of subsets, for fixed panels.")] = False,
    answers: Answers = "posterior",
    grams: Annotated[Literal["regression"] | None, Option(help="Only measure what this method needs.")] = None,
    device: options.Device = "cpu",
    out: Annotated[Path, Option(help="File to write; answers and method are added to its name.")] = Path(
        "out/survey.json"
    ),
) -> None:
    """Measure what a checkpoint's blends earn on held-out rows. Resumes where it stopped."""
    import torch

    from tanbr.lab.simulate import Study
    from tanbr.lab.survey import survey_path, survey_to
    from tanbr.moe import embedded

    torch.set_num_threads(1)
    if grams is not None and checkpoint is None:
        raise ConfigError("--grams writes beside the experts: name a checkpoint, or a list of experts")
    study = Study(checkpoint=checkpoint or embedded.path(), **over, data=data, rehearse=rehearse, device=device)
    bench = study.bench()
    if grams is not None:
        _measure_grams(bench, rows=rows or GRAM_ROWS)
        return
    bench = bench.merging(method or study.merging)
    least = bench.moe.num_experts + 1
    if blends < least:
        raise ConfigError(
            f"a survey holds each of the {least - 1} experts alone and all alike (got {blends}); give {least} or more"
        )
    out = survey_path(out, str(bench.moe.method), answers_by=answers)
    with bar("surveying", unit="blends") as show:
        found = survey_to(
            out, bench.moe, bench.corpus, blends=blends, rows=rows or 60, command=options.command_line(),
            groups=groups, answers_by=answers, report=show,
        )  # fmt: skip
    say_survey(found)
    console.print(f"survey: {out}")


def say_survey(found: "Survey") -> None:
    """Print what the blends are worth: to each task, and to mixes of them."""
    K, best = found.blends.shape[1], found.rewards.mean(axis=1).argmax()
    columns = [found.figures[:K].max(axis=0), found.figures[K], found.figures[best]]  # (V,)
    cells = [[task, *(f"{of[v]:.3f}" for of in columns)] for v, task in enumerate(found.tasks)]
    header = ["task", "best expert alone", "even blend", "best fixed blend"]
    console.print(*fitted("the task's metric", header, cells), sep="\n")
    for alpha in (0.1, 0.3, 1.0):
        stakes = found.stakes(alpha)
        console.print(
            f"Dirichlet({alpha}): best per mix {stakes['best_per_mix']:.3f}, best fixed {stakes['best_fixed']:.3f}, "
            f"even {stakes['uniform']:.3f}"
        )


def _measure_grams(bench: "Bench", *, rows: int) -> None:
    """Measure each expert's inputs, and write them to a folder beside the experts."""
    from tanbr.lab.rivals.probes import probes_of
    from tanbr.lab.rivals.regmean import measure
    from tanbr.serve.dense import DenseModel

    DenseModel(bench.moe, bench.corpus.space)  # its head must fit
    held = bench.corpus.first_held(rows)
    probes = probes_of(bench.moe, held, space=bench.corpus.space, own=bench.own_experts)
    with bar("measuring", unit="experts") as show:
        K = bench.moe.num_experts
        written = measure(bench.moe, probes, rows=rows, report=lambda done: show(done, K))
    size = sum(file.stat().st_size for file in written.iterdir())
    console.print(f"grams: {written} ({size / 1e6:.0f} MB)")
