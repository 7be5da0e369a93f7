"""`tanbr push`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tanbr.cli.display import console
from tanbr.cli.merging import BlendWhat, ExpertFolders, Source, parse_blend
from tanbr.errors import InputError

app = typer.Typer()


@app.command(
    epilog="Examples:\n\n    tanbr push mixtral/ --blend 0.5,0.5,0,0,0,0,0,0 --to http://127.0.0.1:8100\n\n"
    "    tanbr push base/ --expert a/ --expert b/ --blend 0.7,0.3 --to http://127.0.0.1:8100 --as-adapter one/"
)
def push(
    checkpoint: Source,
    to: Annotated[str, typer.Option(help="Address of the engine, as http://127.0.0.1:8100.")],
    blend: Annotated[
        str | None,
        typer.Option(
            help="One weight per expert, as 0.5,0.5,…; or `even`; or `one-hot:3`. Default: the list's weights."
        ),
    ] = None,
    engine: Annotated[Literal["vllm", "llamacpp"], typer.Option(help="Which engine runs there.")] = "vllm",
    method: Annotated[str | None, typer.Option(help="How the blend is merged: average, regression, ties, …")] = None,
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    as_adapter: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="With adapters and vLLM: write one adapter to the new folder OUT, to be loaded."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Merge what `tanbr inspect` says not to merge.")] = False,
) -> None:
    """Merge a blend and load it into a running engine, once. A `tanbr serve` in front of that engine overwrites it."""
    from tanbr.engines import connect
    from tanbr.merge import open as open_moe
    from tanbr.merge.inspect import glance

    moe = open_moe(checkpoint, experts=expert or (), blend_only=blend_only, method=method)
    weights = list(moe.source.weights) if blend is None else parse_blend(blend, experts=moe.num_experts)
    if not weights:
        raise InputError("a push needs --blend, or a list of experts with their weights")
    wanted = moe.check(weights)
    if not force and sum(weight != 0 for weight in weights) > 1:
        verdict, reason = glance(moe)
        if verdict != "merge":
            raise InputError(f"{verdict}: {reason} (`tanbr inspect` says more, --force merges all the same)")
    model = connect(moe, engine=engine, url=to, as_adapter=as_adapter is not None, out=as_adapter)
    try:
        model.merge(moe, wanted)
    finally:
        model.close()
    named = "" if as_adapter is None else " where it is asked for"
    console.print(f"{to} answers with {model.label_of(wanted)}{named}, {model.size.own_bytes} bytes")
