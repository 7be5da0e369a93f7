"""`tanbr merge`, `tanbr inspect`, `tanbr assemble`, `tanbr align` and `tanbr upcycle`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from rich.table import Table

from tanbr.cli.display import console, progress
from tanbr.errors import DataError, InputError
from tanbr.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from tanbr.merge.inspect import Inspection
    from tanbr.moe.writing import Progress

app = typer.Typer()
MANY = 32  # experts from which a router learns sooner over groups of them

Source = Annotated[
    str,
    typer.Argument(
        help="Folder of the MoE checkpoint (config.json and safetensors), a hub id, the base of --expert, or a TOML or "
        "YAML file that lists experts."
    ),
]
ExpertFolders = Annotated[
    list[str] | None,
    typer.Option(
        "--expert", help="A fine-tuned copy or LoRA adapter of the checkpoint, which is then dense; repeatable."
    ),
]
BlendWhat = Annotated[
    Literal["all", "ffn"] | None,
    typer.Option(
        "--blend-only", help="With experts over a base: blend all that differs, or only FFNs and keep the base's rest."
    ),
]
NewFolder = Annotated[Path, typer.Argument(help="New folder to write; it appears whole or not at all.")]


@app.command(
    epilog="Examples:\n\n    tanbr merge mixtral/ dense/ --blend even\n\n"
    "    tanbr merge moe/ dense/ --blend 0.5,0.3,0.2,0\n\n    tanbr merge moe/ wide/ --mode concat --experts 0,3\n\n"
    "    tanbr merge bert/ dense/ --expert sst2/ --expert mnli/ --blend 0.4,0.6\n\n    tanbr merge experts.toml dense/"
)
def merge(
    checkpoint: Source,
    out: NewFolder,
    blend: Annotated[
        str | None,
        typer.Option(
            help="One weight per expert, as 0.5,0.5,…; or `even`; or `one-hot:3`. Default: the list's weights."
        ),
    ] = None,
    mode: Annotated[
        Literal["blend", "concat"],
        typer.Option(
            help="Merge a blend of experts, or put k of them side by side in a wider FFN, each with weight 1/k."
        ),
    ] = "blend",
    method: Annotated[
        str | None,
        typer.Option(
            help="How to merge: average, regression, ties:density=0.3, … Default: as the list says, or average."
        ),
    ] = None,
    experts: Annotated[str | None, typer.Option(help="Which experts to put side by side: 0,3,…")] = None,
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    as_adapter: Annotated[
        bool,
        typer.Option("--as-adapter", help="With adapters: write one adapter that does what the blend of them does."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Merge what `tanbr inspect` says not to merge.")] = False,
) -> None:
    """Merge an MoE checkpoint into a plain dense one, with a certificate of what was done."""
    from tanbr.merge import open as open_moe
    from tanbr.merge.export import export
    from tanbr.merge.inspect import glance

    if (mode == "concat") != (experts is not None) or (mode == "concat" and blend is not None):
        raise InputError("--mode concat needs --experts, a merge needs --blend, and neither takes the other's")
    moe = open_moe(checkpoint, experts=expert or (), blend_only=blend_only, method=method)
    weights = None if mode == "concat" else list(moe.source.weights)
    if blend is not None:
        weights = parse_blend(blend, experts=moe.num_experts)
    elif weights is not None and not weights:
        raise InputError("a merge needs --blend, or a list of experts with their weights")
    if not force and weights is not None and sum(weight != 0 for weight in weights) > 1:
        verdict, reason = glance(moe)
        if verdict != "merge":
            raise InputError(f"{verdict}: {reason} (`tanbr inspect` says more, --force merges all the same)")
    if as_adapter:
        from tanbr.merge.sources.one_adapter import export_adapter

        if weights is None:
            raise InputError("--as-adapter needs --blend")
        export_adapter(moe, out, blend=weights)
        console.print(f"{out}: one adapter that adds what {moe.num_experts} do, blended")
        return
    with bar("merging") as show:
        export(
            moe,
            out,
            blend=weights,
            mode=mode,
            experts=None if experts is None else _numbers(experts, "--experts"),
            progress=show,
        )
    console.print(
        f"{out}: {moe.plan.config().architectures[0]}, merged from {moe.num_experts} experts at {len(moe.sites)} sites"
    )
    console.print(f"certificate: {out / 'certificate.json'}")
    if moe.family.note:
        console.print(f"note: {moe.family.note}")


@app.command(
    epilog="Examples:\n\n    tanbr inspect moe/\n\n    tanbr inspect moe/ --data labelled.jsonl --out report/\n\n"
    "    tanbr inspect experts.toml --blend-only ffn"
)
def inspect(
    checkpoint: Source,
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    data: Annotated[
        Path | None,
        typer.Option(help='JSON lines of model inputs with labels, {"input_ids": […], "labels": …}; adds losses.'),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for inspect.json and a heat map.")] = None,
) -> None:
    """Check whether a checkpoint's experts share an ancestor. The verdict: merge, align first, or do not merge."""
    from tanbr.merge import inspect as inspecting
    from tanbr.merge import open as open_moe

    moe = open_moe(checkpoint, experts=expert or (), blend_only=blend_only, method="average")
    batches = [] if data is None else read_batches(data)
    with bar("inspecting", unit="sites") as show:
        report = inspecting.inspect(moe, batches=batches, progress=show)
    console.print(_report_table(report))
    for line in report.lines:
        losses = " → ".join(f"{loss:.4f}" for loss in line.loss)
        console.print(f"loss from expert {line.first} to expert {line.second}: {losses} (barrier {line.barrier:+.1%})")
    console.print(f"[bold]{report.verdict}[/]: {report.reason}")
    if report.note:
        console.print(f"note: {report.note}")
    if report.experts >= MANY:
        console.print(f"note: {report.experts} experts are many to learn a blend of; `tanbr groups` may help at first")
    if out is not None:
        write_atomically(out / "inspect.json", json.dumps(report.to_json(), indent=2) + "\n")
        inspecting.draw(report, out / "inspect.png")
        console.print(f"figures: {out / 'inspect.json'}\nheat map: {out / 'inspect.png'}")


@app.command(epilog="Example:\n\n    tanbr upcycle bert/ bert-moe/ --experts 8 --jitter 0.01")
def upcycle(
    dense: Annotated[
        Path, typer.Argument(help="Folder of a dense BERT, T5, Llama, Mistral, Qwen3 or Olmo2 checkpoint.")
    ],
    out: NewFolder,
    experts: Annotated[int, typer.Option(help="How many experts each FFN gets.")] = 8,
    jitter: Annotated[
        float, typer.Option(help="Noise on each expert, as a share of a matrix's standard deviation.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise and of the routers.")] = 0,
) -> None:
    """Turn a dense checkpoint into an MoE whose experts start equal."""
    from tanbr.lab.train.upcycle import upcycle as make

    with bar("upcycling") as show:
        make(dense, out, experts=experts, jitter=jitter, seed=seed, progress=show)
    console.print(f"{out}: {experts} experts in every FFN")


@app.command(
    epilog="Examples:\n\n    tanbr assemble experts.toml moe/ --blend-only ffn\n\n"
    "    tanbr assemble bert/ moe/ --expert sst2/ --expert mnli/ --rest average && tanbr serve moe/"
)
def assemble(
    checkpoint: Annotated[
        str, typer.Argument(help="TOML or YAML file that lists experts over a base; or the base, with --expert.")
    ],
    out: NewFolder,
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    rest: Annotated[
        Literal["refuse", "average"],
        typer.Option(
            help="What to do with differences outside FFNs, which an MoE cannot hold: refuse them, or average them."
        ),
    ] = "refuse",
) -> None:
    """Write experts over a base as one MoE checkpoint, with a card that names their tasks and labels."""
    from tanbr.lab.train.checkpoints import assemble as make
    from tanbr.merge import open as open_moe

    moe = open_moe(checkpoint, experts=expert or (), blend_only=blend_only, method="average")
    with bar("assembling") as show:
        averaged = make(moe, out, rest=rest, progress=show)
    console.print(f"{out}: {moe.num_experts} experts in every FFN; gates, if it has any, are random")
    if averaged:
        console.print(f"averaged over the experts, not routed: {len(averaged)} tensors ({averaged[0]} for one)")


@app.command(epilog="Example:\n\n    tanbr align moe/ aligned/ && tanbr merge aligned/ dense/ --blend even")
def align(
    checkpoint: Source,
    out: NewFolder,
    reference: Annotated[int, typer.Option(help="The expert whose order of hidden units the others take.")] = 0,
) -> None:
    """Put the hidden units of all experts in the same order, where `tanbr inspect` says "align first"."""
    from tanbr.merge import align as aligning
    from tanbr.merge import open as open_moe

    with bar("aligning") as show:
        aligning.align(open_moe(checkpoint), out, reference=reference, progress=show)
    console.print(f"{out}: computes what {checkpoint} does, with its experts' hidden units in one order")


def parse_blend(text: str, *, experts: int) -> list[float]:
    """Read a blend of K experts: numbers, `even` (also `uniform`, as it was once called), or `one-hot:k`."""
    if text in ("even", "uniform"):
        return [1 / experts] * experts
    if text.startswith("one-hot:"):
        chosen = _numbers(text.removeprefix("one-hot:"), "--blend one-hot:")
        if len(chosen) != 1 or not 0 <= chosen[0] < experts:
            raise InputError(f"one-hot needs one expert, numbered 0..{experts - 1} (got {text!r})")
        return [float(k == chosen[0]) for k in range(experts)]
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--blend must be numbers like 0.5,0.5, or even, or one-hot:3 (got {text!r})") from None


def _numbers(text: str, name: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{name} must be whole numbers like 0,3 (got {text!r})") from None


def read_batches(path: Path) -> "list[dict[str, Tensor]]":
    """Read model inputs from JSON lines, one example a line, as batches of one."""
    import torch

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        batches = [{key: torch.tensor([value]) for key, value in json.loads(line).items()} for line in lines]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, RuntimeError):
        raise DataError(f"{path}: every line must be a JSON object of numbers and lists of numbers") from None
    if not batches or not all("labels" in batch for batch in batches):
        raise DataError(f"{path} must hold examples, each with labels beside the model's inputs")
    return batches


def _report_table(report: "Inspection") -> Table:
    """Lay out a row a site; a site's name folds where the terminal is narrow, and no figure is cut."""
    table = Table(caption="means over pairs of experts; units: hidden units of expert 0 beside those of others")
    table.add_column("site", overflow="fold")
    for name in ("distance", "cosine", "task\ncosine", "units\nin place", "best\nmatch", "moved"):
        table.add_column(name, justify="right", no_wrap=True)
    off = ~np.eye(report.experts, dtype=bool)
    for site in report.sites:
        means = [float(values[off].mean()) for values in (site.distance, site.cosine, site.task_cosine)]
        table.add_row(
            site.site,
            *(f"{value:.3f}" for value in (*means, site.unit_cosine, site.best_unit_cosine)),
            f"{site.mismatch:.0%}",
        )
    return table


@contextmanager
def bar(what: str, *, unit: str = "tensors") -> "Iterator[Progress]":
    """Show a bar while something runs that says how far it is."""
    with progress(unit) as shown:
        task = shown.add_task(what, total=None, note="")
        yield lambda done, total: shown.update(task, completed=done, total=total)
