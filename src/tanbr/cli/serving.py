"""`tanbr serve`, `tanbr backup`, `tanbr send` and `tanbr replay`."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from tanbr import settings as configuration
from tanbr.baselines.registry import ROUTERS, build, kind
from tanbr.cli.display import console
from tanbr.cli.running import ConfigFile, command_line
from tanbr.errors import InputError, OutputError
from tanbr.files import write_atomically
from tanbr.types import Text

if TYPE_CHECKING:
    from tanbr.serve.records import ServiceInfo, ServiceState
    from tanbr.serve.web.auth import Tokens

app = typer.Typer()

Server = Annotated[str, typer.Option(envvar="TANBR_SERVER", help="Address of the server.")]
LOCAL = "http://127.0.0.1:8000"


@app.command(
    epilog="Examples:\n\n    tanbr serve\n\n    tanbr serve moe/ --slot-requests 256 --state moe-state/\n\n"
    "    TANBR_ADMIN_TOKEN=$(openssl rand -hex 24) tanbr serve moe/ --precision int8 --port 9000"
)
def serve(
    checkpoint: Annotated[
        str | None, typer.Argument(help="Folder of the MoE checkpoint, or a hub id; the embedded model if not given.")
    ] = None,
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; only this machine if not given.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    state: Annotated[
        Path, typer.Option(help="Folder for what is learned; a server that starts there again goes on.")
    ] = Path("out/serve"),
    history: Annotated[
        Path | None, typer.Option(help='JSON lines {"text", "task", "label"?}: names the tasks, teaches the monitor.')
    ] = None,
    slot_requests: Annotated[int | None, typer.Option(help="End a slot after so many requests …")] = None,
    slot_seconds: Annotated[float | None, typer.Option(help="… or after so many seconds.")] = None,
    precision: Annotated[Literal["fp32", "int8"] | None, typer.Option(help="Arithmetic of the served model.")] = None,
    low_memory: Annotated[
        bool | None, typer.Option("--low-memory", help="Merge in place, with a pause, instead of into a spare buffer.")
    ] = None,
    explore: Annotated[
        Literal["never", "careful", "always"] | None,
        typer.Option(help="When the router may try other blends than the start blend: careful needs rewards."),
    ] = None,
    blend: Annotated[
        str | None, typer.Option(help="Start blend: even, proportional, or weights by comma (0.5,0.5,0,0).")
    ] = None,
    survey: Annotated[
        Path | None, typer.Option(help="What `tanbr survey` wrote: its best blend for the mix is the start blend.")
    ] = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="What `tanbr survey` wrote: the router knows it before its first slot.")
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Go on with the state of another checkpoint; what it learned is a prior.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Serve experts of which `tanbr inspect` says: do not merge.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="How blends are merged: average, regression, ties, …")] = None,
    regression: Annotated[bool, typer.Option("--regression", hidden=True)] = False,
    rate: Annotated[float | None, typer.Option(help="Most requests a second of one client.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the clients' token (or set TANBR_TOKEN).")] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(help="File with the operators' token (or set TANBR_ADMIN_TOKEN).")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also log every request.")] = False,
) -> None:
    """Serve an MoE as one dense model that follows its traffic: HTTP, a dashboard, and learning from feedback."""
    settings = configuration.with_options(
        configuration.load(config),
        serve={
            "slot_requests": slot_requests,
            "slot_seconds": slot_seconds,
            "precision": precision,
            "low_memory": low_memory,
            "explore": explore,
            "blend": _blend(blend),
            "method": "regression" if regression else method,
        },
        http={"host": host, "port": port, "rate": rate},
    )
    from tanbr.serve.web import logs
    from tanbr.serve.web.auth import Tokens
    from tanbr.serve.web.server import Observers, address_of, bind, server

    tokens = Tokens.read(os.environ, token_file=token_file, admin_token_file=admin_token_file)
    with bind(settings.http) as socket:
        url, loopback = address_of(socket)
        logs.to_stream(level=logging.DEBUG if verbose else logging.INFO)

        from tanbr.serve.build import build
        from tanbr.serve.web.metrics import Metrics

        metrics = Metrics()
        observer = Observers([metrics, logs.Journal()])
        service = build(
            checkpoint,
            config=settings.serve,
            router=settings.router,
            monitor=settings.monitor,
            state=state,
            history=history,
            survey=survey,
            warm_start=warm_start,
            adopt=adopt,
            force=force,
            observer=observer,
        )
        running = server(service, config=settings.http, tokens=tokens, metrics=metrics, loopback=loopback)
        console.print(_banner(url, service.info, service.state(), state=state, tokens=tokens))
        if not loopback and tokens.general is None:
            text = f"{url} is open to everybody who reaches it: set TANBR_TOKEN"
            logs.say("public", level=logging.WARNING, text=text)
        running.handle_exit = _announced(running.handle_exit, seconds=settings.http.stop_seconds)  # type: ignore[method-assign, assignment]
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when all is done
            running.run(sockets=[socket])
        if not service.saved:
            raise OutputError(f"what was learned last could not be saved in {state}; the log above says why")
        console.print(f"stopped; what was learned is in {escape(str(state))}")


def _announced(stop: Callable[[int, Any], None], *, seconds: float) -> Callable[[int, Any], None]:
    def announced(number: int, frame: Any) -> None:
        console.print(f"stopping: finishing what was accepted (at most {seconds:g} s), then saving; again ends at once")
        stop(number, frame)

    return announced


def _blend(given: str | None) -> str | tuple[float, ...] | None:
    if given is None or given in ("even", "proportional"):
        return given
    try:
        return tuple(float(weight) for weight in given.split(","))
    except ValueError:
        raise InputError(f"--blend must be even, proportional, or weights by comma (got {given!r})") from None


@app.command(epilog="Examples:\n\n    tanbr backup out/serve copies/monday")
def backup(
    state: Annotated[Path, typer.Argument(help="A server's --state folder; the server may be running.")],
    out: Annotated[Path, typer.Argument(help="New folder for the copy: a state that a server can start from.")],
) -> None:
    """Copy what a server has learned, also while it runs."""
    from tanbr.serve.backup import back_up

    console.print(f"copied to {escape(str(back_up(state, out)))}")


def _banner(url: str, info: "ServiceInfo", now: "ServiceState", *, state: Path, tokens: "Tokens") -> Table:
    slot = [f"{info.slot_requests} requests"] if info.slot_requests else []
    slot += [f"{info.slot_seconds:g} seconds"] if info.slot_seconds else []
    spare = f" + {_size(info.spare_bytes)} spare" if info.spare_bytes else ""
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("[bold]tanbr[/]", f"[bold]{url}[/]"),
        ("model", escape(f"{info.model} ({info.family}): {info.experts} experts at {info.sites} sites")),
        ("tasks", escape(", ".join(info.tasks))),
        (
            "loaded",
            f"{_size(info.loaded_bytes)}{spare}, {info.loaded_parameters / 1e6:.3g} M parameters, "
            f"{info.precision} on {info.device}",
        ),
        ("full", f"{_size(info.full_bytes)}, {info.full_parameters / 1e6:.3g} M parameters, left on disk"),
        ("slot", " or ".join(slot)),
        ("state", escape(f"{state}: slot {now.slot}, merge version {now.merge_version}, {now.phase}")),
        (
            "access",
            f"{'with a token' if tokens.general else 'without a token'}; "
            f"administration {'with its token' if tokens.admin else 'off'}",
        ),
    ):
        table.add_row(name, value)
    return table


def _size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


@app.command(
    epilog='Examples:\n\n    tanbr send "the plot is clever"\n\n    tanbr send --file texts.txt --json\n\n'
    '    tanbr send "the plot is clever" --feedback 1\n\n    tanbr send --id 0f3a-1 --feedback 0.5'
)
def send(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; a tab in one separates a pair.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with a text, or a pair, on each line; - is stdin.")] = None,
    labels: Annotated[str | None, typer.Option(help="The only labels to choose from: yes,no")] = None,
    feedback: Annotated[float | None, typer.Option(help="Reward in [0, 1] to give the answers.")] = None,
    task: Annotated[str | None, typer.Option(help="Task that the feedback is for, if you know it.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Give the feedback to this earlier answer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the server answers.")] = False,
    server: Server = LOCAL,
) -> None:
    """Send texts to a server, and feedback on its answers. A token is taken from TANBR_TOKEN."""
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
    epilog="Examples:\n\n    tanbr replay out/serve\n\n"
    "    tanbr replay out/serve --routers tanbr,average --out replay.json"
)
def replay(
    log: Annotated[Path, typer.Argument(help="A server's --state folder; the server may be running.")],
    routers: Annotated[str, typer.Option(help=f"Which to run: {', '.join(ROUTERS)}.")] = "tanbr,average,random",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the routers.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File for the figures, as JSON.")] = None,
    config: ConfigFile = None,
) -> None:
    """Run other routers over what a server recorded, and say how far the record can vouch for the outcome."""
    settings = configuration.load(config)
    names = routers.split(",")
    for name in names:
        kind(name)
    from dataclasses import asdict

    from tanbr.serve.replay import read_log
    from tanbr.serve.replay import replay as run

    recorded = read_log(log)
    K, V = recorded.blends.shape[1], recorded.mixes.shape[1]
    chosen = settings.router.of_requests()
    result = run(recorded, {name: build(name, K, V, seed=seed, config=chosen) for name in names}, seed=seed)
    table = Table("router", "reward", "±", "near what was served", "", box=None, padding=(0, 2, 0, 0))
    for one in result.routers:
        vouched = "" if one.supported else "a guess"
        table.add_row(one.router, f"{one.reward:.3f}", f"{one.deviation:.3f}", f"{one.coverage:.0%}", vouched)
    console.print(table)
    console.print(
        f"{result.slots} slots, {result.blends} blends, recorded reward {result.logged_reward:.3f}; the surrogate "
        f"foretells a slot to {result.held_out:.3f}, the mean alone to {result.held_out_by_mean:.3f}"
    )
    if result.held_out >= result.held_out_by_mean:
        console.print("so this record tells no blend from another: no order of the routers follows from it")
    if out is not None:
        figures = {"command": command_line(), "seed": seed, **asdict(result)}
        write_atomically(out, json.dumps(figures, indent=2) + "\n")
        console.print(f"figures: {out}")
