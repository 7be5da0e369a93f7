"""`tanbr merge`, `export`, `card` and `inspect`: checkpoints in, checkpoints, a card or a verdict out."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from typer import Option

from tanbr.cli.display import bar, console, fitted, phases, show_check
from tanbr.cli.options import Given, MergeMethod, examples, options_of
from tanbr.config import read
from tanbr.errors import InputError
from tanbr.files import write_atomically
from tanbr.serve.config import StartConfig

if TYPE_CHECKING:
    from tanbr.merge import Moe
    from tanbr.merge.export import About

app = typer.Typer()

Source = Annotated[str, typer.Argument(help="Folder of an MoE, a hub id, a list of experts, or the base of --expert.")]
NewFolder = Annotated[Path, typer.Argument(help="New folder to write; it appears whole or not at all.")]


@app.command(
    epilog=examples(
        "tanbr merge mixtral/ dense/ --blend even",
        "tanbr merge bert/ dense/ --expert sst2/ --expert mnli/ --blend 0.4,0.6",
    )
)
@options_of(StartConfig, "over", "experts blend_only")
def merge(
    checkpoint: Source,
    out: NewFolder,
    over: Given,
    blend: Annotated[
        str | None, Option(help="As 0.5,0.5,…; or even; or one-hot:3. Default: the list's weights.")
    ] = None,
    method: MergeMethod = None,
    as_adapter: Annotated[bool, Option("--as-adapter", help="With adapters: write their blend as one.")] = False,
    force: Annotated[bool, Option("--force", help="Merge what `tanbr inspect` says not to merge.")] = False,
) -> None:
    """Merge an MoE checkpoint into a plain dense one, with a certificate of what was done."""
    from tanbr.merge import open as open_moe
    from tanbr.merge.export import About
    from tanbr.tasks.card import read_card

    moe = open_moe(checkpoint, **over, method=method)
    about = About(moe.source.expert_tasks or read_card(moe.path).expert_tasks)
    _write(moe, _weights(moe, blend, force=force), out, about, as_adapter=as_adapter)


@app.command(
    epilog=examples(
        "tanbr export dense/ --state out/serve",
        "tanbr export one/ --state out/serve --as-adapter",
    )
)
@options_of(StartConfig, "start", "state")
def export(
    out: NewFolder,
    start: Given,
    model: Annotated[int, Option(min=1, help="Which of several models that are served side by side.")] = 1,
    as_adapter: Annotated[bool, Option("--as-adapter", help="With adapters: write their blend as one.")] = False,
) -> None:
    """Write the model that a server serves now, or served last, with certificate and model card; the server goes on."""
    from tanbr.serve.export import served

    one = served(read(StartConfig, start, source="options").state, number=model)
    _write(one.moe, one.blend.tolist(), out, one.about, as_adapter=as_adapter)
    console.print(escape(f"it is {one.title}; it answers {', '.join(one.tasks) or 'no task'}"), soft_wrap=True)


@app.command(
    epilog=examples(
        "tanbr card --learned out/serve",
        "tanbr card --learned out/serve --out moe/    # where its next server finds it",
    )
)
def card(
    learned: Annotated[Path, Option(help="A server's --state; the server may run meanwhile.")],
    out: Annotated[Path, Option(help="Folder to write tanbr.json into.")] = Path(),
) -> None:
    """Write the expert that each task needs, as a server's practice found it, as a checkpoint's card (tanbr.json)."""
    from tanbr.serve.export import learned_card
    from tanbr.tasks.card import FILE, write_card

    found, made, worth = learned_card(learned)
    if (out / FILE).exists():
        raise InputError(f"{out / FILE} is there already; move it away, or give another --out")
    rows = []
    for task, own in found.own_experts.items():
        of = worth[task]
        rows.append((task, made.experts[own], f"{of.rewards[own]:.3f}", f"{of.errors[own]:.3f}", str(of.rows)))
    write_card(out, found)
    title = "reward of the expert alone on logged requests, with a 95% interval"
    console.print(*fitted(title, ["task", "expert", "reward", "±", "rows"], rows), sep="\n")
    console.print(f"card: {out / FILE}; in the checkpoint's folder, its next server starts by it", soft_wrap=True)


def _write(moe: "Moe", blend: list[float], out: Path, about: "About", *, as_adapter: bool) -> None:
    """Write a blend as a model or an adapter, and say what it is."""
    if as_adapter:
        from tanbr.merge.sources.one_adapter import export_adapter

        export_adapter(moe, out, blend=blend, about=about)
        made = "one adapter"
    else:
        from tanbr.merge.export import export as write

        with bar("merging") as show:
            write(moe, blend, out, about=about, progress=show)
        made = moe.plan.config().architectures[0]
    active = sum(weight > 0 for weight in blend)
    console.print(f"{out}: {made}, merged from {active} of {moe.num_experts} experts at {len(moe.sites)} sites")
    console.print(f"certificate: {out / 'certificate.json'}; model card: {out / 'README.md'}")


@app.command(
    epilog=examples(
        "tanbr inspect moe/",
        "tanbr inspect experts.toml --data past.jsonl    # what each way of serving them would earn",
        "tanbr inspect --state out/serve    # what learning is worth there",
    )
)
@options_of(StartConfig, "over", "experts blend_only")
def inspect(
    over: Given,
    checkpoint: Annotated[str | None, typer.Argument(help="As of merge.")] = None,
    state: Annotated[Path | None, Option(help="A server's --state instead: what is learning worth there?")] = None,
    data: Annotated[Path | None, Option(help="Labelled rows, as serve's --history: what would serving earn?")] = None,
    out: Annotated[Path | None, Option(help="Folder for the figures, as JSON.")] = None,
) -> None:
    """Check whether a checkpoint's experts share an ancestor. The verdict: merge, or do not merge."""
    if checkpoint is None or state is not None:
        if checkpoint is not None or state is None:
            raise InputError("inspect either a checkpoint or a server's --state")
        _show_gain(state)
        return
    from tanbr.merge import inspect as inspecting
    from tanbr.merge import open as open_moe

    moe = open_moe(checkpoint, **over, method="average")
    with bar("inspecting", unit="sites") as show:
        report = inspecting.inspect(moe, progress=show)
    if report.kinship:
        title, header = "how alike each expert's matrices are to the base's", ["expert", "cosine"]
    else:
        title, header = "how alike expert 0's hidden units are to those of others", ["site", "cosine"]
    rows = [[Path(name).name, f"{cosine:.3f}"] for name, cosine in (report.kinship or report.sites).items()]
    console.print(*fitted(title, header, rows), sep="\n")
    console.print(f"[bold]{report.verdict}[/]: {escape(report.reason)}")
    if out is not None:
        write_atomically(out / "inspect.json", json.dumps(asdict(report), indent=2) + "\n")
        console.print(f"figures: {out / 'inspect.json'}")
    if data is not None:
        _show_check(moe, data)


def _show_gain(state: Path) -> None:
    """Print what learning is worth by the slots that were held back."""
    from tanbr.lab.replay import replay

    found = replay(state)
    gain = found.by_tasks
    of_tasks = [(f"  {one}", *of) for one, *of in zip(found.tasks, gain.tasks, gain.errors, strict=True)]
    named = ("self-normalised", *found.self_normalised), ("doubly robust", *found.doubly_robust)
    figures = (("by tasks", gain.total, gain.error), *of_tasks, *named)
    rows = [(name, f"{100 * value:+.1f}", f"{100 * error:.1f}") for name, value, error in figures]
    title = "points of reward beyond the start blend, with 95% intervals"
    console.print(*fitted(title, ["", "gain", "±"], rows), sep="\n")
    console.print(f"{gain}: {gain.held} of {gain.slots} slots were held back", soft_wrap=True)


def _show_check(moe: "Moe", data: Path) -> None:
    """Print the table that `serve` prints at start."""
    from tanbr.serve.build import known_of
    from tanbr.serve.check import checked
    from tanbr.serve.config import ServeConfig

    with tempfile.TemporaryDirectory() as kept, phases() as report:
        found = checked(known_of(moe, data), ServeConfig(), Path(kept), monitor=None, report=report)
    if found is not None:
        show_check(found)


def _weights(moe: "Moe", blend: str | None, *, force: bool) -> list[float]:
    """Give the blend to merge, and refuse experts that should not be merged."""
    from tanbr.merge.inspect import glance

    weights = list(moe.source.weights) if blend is None else _blend(blend, moe.num_experts)
    if not weights:
        raise InputError("a merge needs --blend, or a list of experts with their weights")
    if not force and sum(weight != 0 for weight in weights) > 1:
        seen = glance(moe)
        if seen.verdict != "merge":
            raise InputError(f"{seen.verdict}: {seen.reason} (`tanbr inspect` says more, --force merges all the same)")
    return weights


def _blend(text: str, experts: int) -> list[float]:
    """Read a blend of K experts: numbers, `even`, or `one-hot:k`."""
    if text == "even":
        return [1 / experts] * experts
    try:
        if text.startswith("one-hot:"):
            only = range(experts).index(int(text.removeprefix("one-hot:")))
            return [float(k == only) for k in range(experts)]
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"--blend must be numbers like 0.5,0.5, or even, or one-hot:k with k from 0 to {experts - 1} (got {text!r})"
        ) from None
