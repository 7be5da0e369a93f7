"""`tanbr pretrain` and `tanbr finetune`."""

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from typer import Option

from tanbr.cli.display import console, fitted, phases
from tanbr.cli.options import Checkpoint, ConfigFile, Data, Given, Tagged, command_line, examples, options_of
from tanbr.cli.simulating import say_survey
from tanbr.errors import ConfigError
from tanbr.files import write_atomically
from tanbr.lab import rivals
from tanbr.lab import settings as configuration
from tanbr.lab.train.config import PRESETS, FinetuneConfig, PretrainConfig, Tuning

app = typer.Typer()

ROUTERS = f"{', '.join(rivals.ROUTERS)} (each also +regression), switch, rl, smear"

_WRITER_SURVEY = {"survey_rows": 60, "survey_blends": 80}  # writing takes longer than a head's answer


@app.command(
    epilog=examples(
        "tanbr pretrain --preset tiny --out out/tiny    # the same command resumes it",
        "tanbr pretrain --preset minilm --from minilm/ --data glue/ --out out/minilm",
        "tanbr pretrain --preset minilm --from minilm/ --data mytasks/ --adapters 8 --out out/lora",
        "tanbr pretrain --preset minilm --from minilm/ --data glue/ --routing none --out out/dense    # no experts",
    )
)
@options_of(PretrainConfig, "given", "mergeable adapters precision device")
def pretrain(
    *,
    preset: Annotated[str, Option(help=f"What to train: {', '.join(PRESETS)}.")] = "tiny",
    dense: Annotated[Path | None, Option("--from", help="Dense BERT or T5 that all experts start from.")] = None,
    data: Data = None,
    out: Annotated[Path, Option(help="Folder for the model and the resumable states.")] = Path("out/pretrain"),
    routing: Annotated[
        Literal["task", "token", "none"], Option(help="An expert per task, gates for every token, or one dense model.")
    ] = "task",
    tagged: Tagged = False,
    threads: Annotated[int, Option(min=1, help="Cores to train on; sums depend on it in the last bits.")] = 2,
    given: Given,
    config: ConfigFile = None,
) -> None:
    """Train an MoE with one expert per task, and write it. Resumes where it stopped."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")
    from tanbr.lab.corpus import Dataset
    from tanbr.lab.tasks import glue

    source = None if data is None else Dataset(data)
    start = PRESETS[preset]
    if source is not None and source.tasks != glue.TASKS:  # presets speak of GLUE's tasks
        start = start.model_copy(update={"task_rows": {}, "ancestor_rows": {}})
    if given.get("adapters"):
        given = {"mergeable": 0.0} | given  # blends of adapters cannot be trained
    loaded = configuration.load(config, over=configuration.Config(pretrain=start))
    settings = start.model_copy(update=configuration.with_options(loaded, pretrain=given).pretrain.model_dump())
    if (dense is None) != (source is None) or (dense is None and not preset.startswith("tiny")):
        raise ConfigError(
            f"preset {preset} needs a dense checkpoint (--from) together with labelled rows (--data); tiny needs none"
        )
    asked = {"--tagged": tagged, "--adapters": settings.adapters > 0, f"--routing {routing}": routing != "task"}
    for option, wanted in asked.items():
        if wanted and dense is None:
            raise ConfigError(f"the generated tasks train whole FFNs, one per task: {option} needs --from and --data")

    import torch

    torch.set_num_threads(1 if dense is None else threads)  # a model this small is no faster on more
    if dense is None or source is None:
        from tanbr.lab.train import embedded as tiny

        with phases() as report:
            writes = preset == "tiny-t5"
            survey = _WRITER_SURVEY if writes else {}
            model, worth = tiny.train_embedded(
                settings, out=out, report=report, command=command_line(), writes=writes, **survey
            )
        say_survey(worth)
        console.print(f"model: {model}")
        return

    from tanbr.lab.pictures import draw_losses
    from tanbr.lab.train import pretrain as experiment
    from tanbr.lab.train.run import Curve

    begun = time.monotonic()
    with phases() as report:
        report("rows", 0, 1, "reading")
        rows, _ = source.divided()
        unseen = source.dev(limit=settings.final_rows)
        model, figures = experiment.train_from_dense(
            settings, dense=dense, rows=rows, unseen=unseen, out=out, report=report, tagged=tagged,
            tasks=source.tasks, routing=routing,
        )  # fmt: skip
    curve = Curve(model.parent if settings.adapters else model)
    picture = draw_losses({task: curve.series(task) for task in rows}, out / "training.png")
    minutes = (time.monotonic() - begun) / 60
    facts = {"command": command_line(), "minutes": minutes, "config": settings.model_dump(), "dev": figures}
    write_atomically(out / "training.json", json.dumps(facts, indent=1) + "\n")
    if figures:
        console.print(*_tables(figures), sep="\n")
    console.print(f"model: {model}\ncurves: {picture}")


@app.command(
    epilog=examples(
        "tanbr finetune --router tanbr --steps 50    # the embedded model",
        "tanbr finetune out/flan-t5/model --data glue/ --router tanbr,nucb,random,average,switch --out out/finetune",
    )
)
@options_of(FinetuneConfig, "given", "steps seed device")
def finetune(
    *,
    checkpoint: Checkpoint = None,
    data: Data = None,
    router: Annotated[str, Option(help=f"Routers to compare, separated by commas: {ROUTERS}.")] = "tanbr",
    out: Annotated[Path, Option(help="Folder for models, curves and figures.")] = Path("out/finetune"),
    tagged: Tagged = False,
    given: Given,
    config: ConfigFile = None,
) -> None:
    """Tune a merged model's normalisation layers while a router learns from the loss. Resumes where it stopped."""
    settings = configuration.with_options(configuration.load(config), finetune=given)

    import torch

    from tanbr.lab.corpus import Dataset
    from tanbr.lab.pictures import draw_losses
    from tanbr.lab.train import finetune as experiment
    from tanbr.lab.train.run import Curve
    from tanbr.moe import embedded
    from tanbr.moe.device import device_of

    torch.set_num_threads(1)
    tuning = Tuning(**settings.finetune.model_dump())
    device_of(tuning.device)  # before rows are made
    names = [experiment.check(name.strip()) for name in router.split(",")]
    with phases() as report:
        report("rows", 0, 1, "reading")
        source = Dataset(data)
        rows, unseen = source.divided()[0], source.dev(limit=tuning.eval_rows)
        report("rows", 1, 1, "")
        about: dict[str, Any] = {"tasks": source.tasks, "unseen": unseen, "tuning": tuning, "tagged": tagged}
        model = checkpoint or embedded.path()
        report("figures untuned", 0, 1, "")
        once = experiment.untuned(model, **about)
        report("figures untuned", 1, 1, "")
        results = [
            experiment.run(
                model, name, **about, rows=rows, choosing=settings.router, out=out, report=report,
                command=command_line(),
            )
            for name in names
        ]  # fmt: skip
    write_atomically(out / "untuned.json", json.dumps(once, indent=1) + "\n")
    curves = {name: Curve(out / name / "tuned.jsonl").series("batch") for name in names}
    picture = draw_losses(curves, out / "losses.png")
    console.print(*_tables(once, "the tasks' metrics before, in points"), sep="\n")
    for result in results:
        console.print(*_tables(result["figures"], f"… with {result['router']}"), sep="\n")
    console.print(f"losses: {picture}")


def _tables(columns: dict[str, dict[str, float]], title: str = "the tasks' metrics, in points") -> list[Table]:
    """Lay out the tasks' figures, one column a way of answering."""
    rows = [[task, *(f"{100 * of[task]:.1f}" for of in columns.values())] for task in next(iter(columns.values()))]
    rows.append(["mean", *(f"{100 * sum(of.values()) / len(of):.1f}" for of in columns.values())])
    return fitted(title, ["task", *columns], rows)
