"""`tanbr send` and `tanbr traffic`: requests to a server that is running."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from tanbr.cli.display import RECENT, console, progress
from tanbr.cli.options import Alpha, Data, Kind, Period, Requests, Seed, Slots, command_line, examples
from tanbr.errors import InputError
from tanbr.files import write_atomically
from tanbr.lab.tasks import traffic as streams
from tanbr.types import Text

if TYPE_CHECKING:
    from tanbr.lab.drive import Drive
    from tanbr.serve.web.client import Client

app = typer.Typer()

Server = Annotated[str, Option(envvar="TANBR_SERVER", help="Address of the server.")]
LOCAL = "http://127.0.0.1:8000"


@app.command(
    epilog=examples(
        'tanbr send "the plot is clever"',
        "tanbr send --json < texts.txt    # one text or pair per line",
        'tanbr send "the plot is clever" --feedback 1',
    )
)
def send(
    texts: Annotated[list[str] | None, Argument(help="A tab separates the texts of a pair. Default: stdin.")] = None,
    feedback: Annotated[float | None, Option(help="Reward in [0, 1] to give the answers.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print what the server answers as one line of JSON.")] = False,
    server: Server = LOCAL,
) -> None:
    """Send texts to a server, and feedback on its answers. The token comes from TANBR_TOKEN."""
    from tanbr.serve.web.client import Client

    with Client(server, token=os.environ.get("TANBR_TOKEN")) as client:
        answers = _ask(client, _texts(texts or []))
        items = answers.get("outputs", answers.get("choices", []))
        try:
            if feedback is not None:
                given = [{"request_id": item["request_id"], "reward": feedback} for item in items]
                answers["feedback"] = client.feedback(given)
        finally:  # the answers are shown even if the feedback was refused
            if as_json:
                sys.stdout.write(json.dumps(answers, ensure_ascii=False) + "\n")
            else:
                _show(items, answers)


def _show(items: list[dict[str, Any]], answers: dict[str, Any]) -> None:
    table = Table("answer", "score", "request id", box=None, padding=(0, 2, 0, 0))
    for item in items:
        score = f"{item['score']:.3f}" if "score" in item else ""
        table.add_row(escape(str(item.get("label", item.get("text")))), score, item["request_id"])
    console.print(table)
    console.print(f"merge version {answers['merge_version']}")
    if "feedback" in answers:
        console.print("feedback: " + ", ".join(f"{count} {what}" for what, count in answers["feedback"].items()))


def _texts(given: list[str]) -> list[Text]:
    if not given and sys.stdin.isatty():
        raise InputError("give a text, or pipe texts in")
    try:
        lines = [line.partition("\t") for line in given or sys.stdin.read().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if not lines:
        raise InputError("there is no text to send")
    return [(first, second) if tab else first for first, tab, second in lines]


def _ask(client: "Client", texts: list[Text]) -> dict[str, Any]:
    model = client.state()["model"]
    if model["kind"] == "classifier":
        return dict(client.classify(texts))
    prompts = [text for text in texts if isinstance(text, str)]
    if len(prompts) < len(texts):
        raise InputError("the model there writes: it takes no pairs")
    return dict(client.complete(prompts, model=model["name"]))


@app.command(
    epilog=examples(
        "tanbr traffic",
        "tanbr traffic --traffic switching --slots 200 --out traffic.json",
        "tanbr traffic --data glue/ --server http://10.0.0.7:8000",
    )
)
def traffic(
    slots: Slots = 100,
    requests: Requests = 64,
    kind: Kind = "dirichlet",
    alpha: Alpha = 0.1,
    period: Period = 40,
    seed: Seed = 0,
    data: Data = None,
    batch: Annotated[int, Option(min=1, help="Texts in one HTTP request.")] = 16,
    rate: Annotated[float | None, Option(min=0.1, help="Most texts per second. Default: no limit.")] = None,
    out: Annotated[Path | None, Option(help="File for the figures, as JSON.")] = None,
    server: Server = LOCAL,
) -> None:
    """Send a server untagged requests that drift, and feedback by the true labels, which it never sees."""
    streams.check(kind, slots=slots, alpha=alpha, period=period)
    from tanbr.lab.corpus import Dataset
    from tanbr.lab.drive import drive, summary
    from tanbr.serve.web.client import Client
    from tanbr.tasks.metrics import LabelSpace

    source = Dataset(data)
    mixes = streams.mixes(kind, tasks=len(source.tasks), slots=slots, seed=seed, alpha=alpha, period=period)
    stream = streams.Traffic(pools=source.dev(), mixes=mixes, requests=requests, seed=seed)
    if out is not None:
        write_atomically(out, "{}\n")  # a place that cannot be written to is better found out now
    driven: list[Drive] = []
    space = LabelSpace(source.tasks)
    with Client(server, token=os.environ.get("TANBR_TOKEN")) as client, progress("slots") as shown:
        bar = shown.add_task("sending", total=slots, note="")
        for one in drive(client, stream, space=space, batch=batch, rate=rate):
            driven.append(one)
            reward = np.mean([slot.rewards.mean() for slot in driven[-RECENT:]])
            speed = len(one.rewards) / one.seconds
            shown.update(bar, completed=len(driven), note=f"reward {reward:.3f}, {speed:.0f} texts a second")
    found = summary(driven, tail=min(RECENT, slots))
    console.print(
        f"reward {found['reward']:.3f} over {slots} slots, {found['tail_reward']:.3f} over the last {found['tail']}; "
        f"{found['texts_per_second']:.0f} texts a second; {found['feedback_accepted']} rewards taken; "
        f"merge version {found['merge_version']}"
    )
    if out is not None:
        write_atomically(out, json.dumps({"command": command_line(), "seed": seed, **found}, indent=2) + "\n")
        console.print(f"figures: {out}")
