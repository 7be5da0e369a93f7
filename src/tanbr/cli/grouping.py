"""`tanbr groups`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tanbr.cli.display import console
from tanbr.cli.merging import BlendWhat, ExpertFolders, Source, bar
from tanbr.cli.running import command_line
from tanbr.errors import DataError, InputError

if TYPE_CHECKING:
    from tanbr.lab.grouping import Grouping
    from tanbr.merge import Moe

app = typer.Typer()


@app.command(
    epilog="Examples:\n\n    tanbr groups qwen/ --into 8 && tanbr serve qwen/ --groups out/groups.json\n\n"
    "    tanbr groups qwen/ --by routing --texts texts.txt --out groups.json --picture groups.png\n\n"
    "    tanbr groups moe/ --by reward --survey survey.json --into 4"
)
def groups(
    checkpoint: Source,
    expert: ExpertFolders = None,
    blend_only: BlendWhat = None,
    into: Annotated[int, typer.Option(help="Number of groups.")] = 8,
    by: Annotated[
        Literal["weights", "routing", "reward"],
        typer.Option(help="What makes experts alike: weights, use by the model's gates, or reward."),
    ] = "weights",
    texts: Annotated[Path | None, typer.Option(help="With --by routing: file with one text per line.")] = None,
    survey: Annotated[Path | None, typer.Option(help="With --by reward: file written by `tanbr survey`.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the similarities, ordered by group, as a PNG.")] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("out/groups.json"),
) -> None:
    """Put a checkpoint's many experts into groups, so that a router can learn over groups."""
    from tanbr.lab.grouping import check_into, draw
    from tanbr.merge import open as open_moe

    if (by == "routing") != (texts is not None) or (by == "reward") != (survey is not None):
        raise InputError("--by routing needs --texts, --by reward needs --survey, and no other way takes them")
    moe = open_moe(checkpoint, experts=expert or (), blend_only=blend_only)
    check_into(into, moe.num_experts)
    found = _found(moe, into, texts=texts, survey=survey)
    found.groups.save(out, experts=moe.num_experts, command=command_line())
    for number, members in enumerate(found.groups.members):
        listed = ", ".join(moe.source.names[k] for k in members)
        console.print(f"group {number}, {len(members)} experts: {listed}", highlight=False)
    console.print(f"mean similarity {found.within:.2f} within groups, {found.between:.2f} between them")
    if picture is not None:
        draw(found, picture)
        console.print(f"picture: {picture}")
    console.print(f"groups: {out}")


def _found(moe: "Moe", into: int, *, texts: Path | None, survey: Path | None) -> "Grouping":
    from tanbr.lab.grouping import by_reward, by_routing, by_weights
    from tanbr.serve.survey import Survey

    if survey is not None:
        known = Survey.load(survey)
        if known.blends.shape[1] != moe.num_experts or known.model_sha256 not in ("", moe.fingerprint):
            raise DataError(f"{survey} is of another checkpoint than {moe.path}; measure it again with `tanbr survey`")
        return by_reward(known.blends, known.rewards, known.counts, into=into, model_sha256=moe.fingerprint)
    if texts is not None:
        with bar("reading texts", unit="texts") as show:
            return by_routing(moe, read_texts(texts), into=into, progress=show)
    with bar("comparing experts", unit="sites") as show:
        return by_weights(moe, into=into, progress=show)


def read_texts(path: Path) -> list[str]:
    """Read texts, one a line; empty lines do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the texts {path}: {error}") from None
    return [line for line in lines if line.strip()]
