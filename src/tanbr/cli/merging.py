"""`tanbr merge`, `tanbr inspect` and `tanbr upcycle`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from tanbr.cli.display import console, progress
from tanbr.errors import InputError
from tanbr.moe.writing import Progress

app = typer.Typer()

Source = Annotated[str, typer.Argument(help="Folder of the MoE checkpoint (config.json and safetensors), or a hub id.")]
NewFolder = Annotated[Path, typer.Argument(help="New folder to write; it appears whole or not at all.")]


@app.command(
    epilog="Examples:\n\n    tanbr merge mixtral/ dense/ --blend uniform\n\n"
    "    tanbr merge moe/ dense/ --blend 0.5,0.3,0.2,0\n\n    tanbr merge moe/ wide/ --mode concat --experts 0,3"
)
def merge(
    checkpoint: Source,
    out: NewFolder,
    blend: Annotated[
        str | None, typer.Option(help="One weight per expert, as 0.5,0.5,…; or `uniform`; or `one-hot:3`.")
    ] = None,
    mode: Annotated[
        Literal["average", "concat"],
        typer.Option(help="Average the experts' weights, or put some side by side (a wider FFN, each with 1/k)."),
    ] = "average",
    experts: Annotated[str | None, typer.Option(help="Which experts to put side by side: 0,3,…")] = None,
) -> None:
    """Merge an MoE checkpoint into a dense one that any stack loads, with a certificate of what was done."""
    from tanbr.merge import open as open_moe
    from tanbr.merge.export import export

    if (mode == "concat") != (experts is not None) or (mode == "average") != (blend is not None):
        raise InputError("--mode average needs --blend, --mode concat needs --experts, and neither takes the other's")
    moe = open_moe(checkpoint)
    with _bar("merging") as show:
        export(
            moe,
            out,
            blend=None if blend is None else parse_blend(blend, experts=moe.num_experts),
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


@app.command(epilog="Example:\n\n    tanbr upcycle bert/ bert-moe/ --experts 8 --jitter 0.01")
def upcycle(
    dense: Annotated[
        Path, typer.Argument(help="Folder of a dense BERT, T5, Llama, Mistral, Qwen3 or Olmo2 checkpoint.")
    ],
    out: NewFolder,
    experts: Annotated[int, typer.Option(help="How many experts each FFN gets.")] = 8,
    jitter: Annotated[float, typer.Option(help="Noise on each expert, as a share of a matrix's deviation.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise and of the routers.")] = 0,
) -> None:
    """Turn a dense checkpoint into an MoE whose experts start equal."""
    from tanbr.moe.upcycle import upcycle as make

    with _bar("upcycling") as show:
        make(dense, out, experts=experts, jitter=jitter, seed=seed, progress=show)
    console.print(f"{out}: {experts} experts in every FFN")


def parse_blend(text: str, *, experts: int) -> list[float]:
    """Read a blend of K experts: numbers, `uniform`, or `one-hot:k`."""
    if text == "uniform":
        return [1 / experts] * experts
    if text.startswith("one-hot:"):
        chosen = _numbers(text.removeprefix("one-hot:"), "--blend one-hot:")
        if len(chosen) != 1 or not 0 <= chosen[0] < experts:
            raise InputError(f"one-hot needs one expert, numbered 0..{experts - 1} (got {text!r})")
        return [float(k == chosen[0]) for k in range(experts)]
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--blend must be numbers like 0.5,0.5, or uniform, or one-hot:3 (got {text!r})") from None


def _numbers(text: str, name: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{name} must be whole numbers like 0,3 (got {text!r})") from None


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    with progress("tensors") as bar:
        task = bar.add_task(what, total=None, note="")
        yield lambda done, total: bar.update(task, completed=done, total=total)
