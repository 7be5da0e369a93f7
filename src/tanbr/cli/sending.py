"""`tanbr send` and `tanbr traffic`: requests to a server that is running."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from tanbr.cli.display import RECENT, console, progress
from tanbr.cli.options import Alpha, Data, Figures, Kind, Period, Requests, Seed, Slots, command_line, examples
from tanbr.errors import InputError
from tanbr.files import write_atomically
from tanbr.lab.tasks import traffic as streams
from tanbr.types import Text

if TYPE_CHECKING:
    from tanbr.lab.drive import Drive
    from tanbr.tasks.rows import Row

app = typer.Typer()
TRAFFIC_SEED = 4_000  # of generated rows that neither training nor the demo uses
POOL = 600  # rows per task that requests are drawn from

Server = Annotated[str, Option(envvar="TANBR_SERVER", help="Address of the server.")]
LOCAL = "http://127.0.0.1:8000"


@app.command(
    epilog=examples(
        'tanbr send "the plot is clever"',
        "tanbr send --file texts.txt --json",
        'tanbr send "the plot is clever" --feedback 1',
        "tanbr send --id 0f3a-1 --feedback 0.5",
    )
)
def send(
    texts: Annotated[list[str] | None, Argument(help="Texts to send; a tab separates the two texts of a pair.")] = None,
    file: Annotated[Path | None, Option(help="File with one text or pair per line; - is stdin.")] = None,
    labels: Annotated[str | None, Option(help="Restrict the answer to these labels, as yes,no.")] = None,
    feedback: Annotated[float | None, Option(help="Reward in [0, 1] to give the answers.")] = None,
    task: Annotated[str | None, Option(help="Task of the feedback, if you know it.")] = None,
    ids: Annotated[list[str] | None, Option("--id", help="Id of the earlier answer that the feedback is for.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the server's answer as JSON.")] = False,
    server: Server = LOCAL,
) -> None:
    """Send texts to a server, and feedback on its answers. The token comes from TANBR_TOKEN."""
    from tanbr.serve.web.client import Client

    if ids and (texts or file):
        raise InputError("--id gives feedback to earlier answers: leave the texts out")
    if ids and feedback is None:
        raise InputError("--id needs --feedback: a reward in [0, 1]")
    with Client(server, token=os.environ.get("TANBR_TOKEN")) as client:
        if ids:
            answers: dict[str, Any] = {}
        else:
            answers = _ask(client, _texts(texts or [], file), labels.split(",") if labels else None)
            ids = [item["request_id"] for item in answers.get("outputs", answers.get("choices", []))]
        if feedback is not None:
            about = {} if task is None else {"task": task}
            answers["feedback"] = client.feedback([{"request_id": one, "reward": feedback, **about} for one in ids])
    if as_json:
        sys.stdout.write(json.dumps(answers, ensure_ascii=False) + "\n")
    else:
        _show(answers)


def _texts(given: list[str], file: Path | None) -> list[Text]:
    if file is not None and given:
        raise InputError("give texts, or --file, not both")
    if file is None and not given and sys.stdin.isatty():
        raise InputError("give a text, or --file, or pipe texts in")
    try:
        if file is not None and str(file) != "-":
            given = file.read_text(encoding="utf-8").splitlines()
        elif not given:
            given = sys.stdin.read().splitlines()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file or 'stdin'} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    lines = [line for line in given if line.strip()]
    if not lines:
        raise InputError("there is no text to send")
    return [_pair(line) if "\t" in line else line for line in lines]


def _pair(line: str) -> tuple[str, str]:
    first, _, second = line.partition("\t")
    return first, second


def _ask(client: Any, texts: list[Text], labels: list[str] | None) -> dict[str, Any]:
    model = client.state()["model"]
    if model["kind"] == "classifier":
        return dict(client.classify(texts, labels=labels))
    if labels is not None or not all(isinstance(text, str) for text in texts):
        raise InputError("the model there writes: it takes neither pairs nor --labels")
    return dict(client.complete(texts, model=model["name"]))


def _show(answers: dict[str, Any]) -> None:
    table = Table("answer", "score", "request id", box=None, padding=(0, 2, 0, 0))
    for output in answers.get("outputs", []):
        table.add_row(escape(output["label"]), f"{output['score']:.3f}", output["request_id"])
    for choice in answers.get("choices", []):
        table.add_row(escape(choice["text"]), "", choice["request_id"])
    if table.rows:
        console.print(table)
        console.print(f"merge version {answers['merge_version']}")
    if "feedback" in answers:
        console.print("feedback: " + ", ".join(f"{count} {what}" for what, count in answers["feedback"].items()))


@app.command(
    epilog=examples(
        "tanbr traffic",
        "tanbr traffic --traffic switching --slots 200 --out traffic.json",
        "tanbr traffic --rate 50    # texts per second",
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
    out: Figures = None,
    server: Server = LOCAL,
) -> None:
    """Send a server untagged requests that drift, and feedback by the true labels, which it never sees."""
    streams.check(kind, slots=slots, alpha=alpha, period=period)
    from tanbr.lab.corpus import Dataset
    from tanbr.lab.drive import drive, summary
    from tanbr.lab.tasks import tiny
    from tanbr.serve.web.client import Client
    from tanbr.tasks.metrics import LabelSpace

    source = None if data is None else Dataset(str(data))
    tasks = tiny.TASKS if source is None else source.tasks
    mixes = streams.mixes(kind, tasks=len(tasks), slots=slots, seed=seed, alpha=alpha, period=period)
    pools: Mapping[str, Sequence[Row]]
    if source is None:
        pools = {task.name: tiny.generate(task.name, POOL, seed=TRAFFIC_SEED + seed, split="test") for task in tasks}
    else:
        pools = source.dev(seed=seed)
    stream = streams.Traffic(pools=pools, mixes=mixes, requests=requests, seed=seed)
    if out is not None:
        write_atomically(out, "{}\n")  # a place that cannot be written to is better found out now
    driven: list[Drive] = []
    space = LabelSpace(tasks)
    with Client(server, token=os.environ.get("TANBR_TOKEN")) as client, progress("slots") as shown:
        bar = shown.add_task("sending", total=slots, note="")
        for one in drive(client, stream, space=space, batch=batch, rate=rate, seed=seed):
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
