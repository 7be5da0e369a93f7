"""`tanbr serve`: in this process, or with replicas on a Ray cluster."""

import contextlib
import gc
import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from tanbr.cli.display import console, phases, show_check
from tanbr.cli.options import ADVANCED, COMMON, Given, examples, options_of
from tanbr.cli.stopping import on_signals
from tanbr.config import read
from tanbr.errors import InputError, OutputError
from tanbr.lab import settings as configuration
from tanbr.serve.config import ServeConfig, StartConfig
from tanbr.serve.web.config import HttpConfig

if TYPE_CHECKING:
    from tanbr.serve.records import ServiceInfo, ServiceState
    from tanbr.serve.web.auth import Tokens

app = typer.Typer()
advanced = partial(Option, rich_help_panel=ADVANCED)


@app.command(
    epilog=examples(
        "tanbr serve experts.toml --history past.jsonl --memory 300MB",
        "tanbr serve moe/ --slot-requests 256 --state moe-state/",
        "tanbr serve mixtral/ --engine vllm --engine-url http://127.0.0.1:8100",
    )
)
@options_of(HttpConfig, "http", common="host port rate")
@options_of(
    ServeConfig,
    "serve",
    common="models memory unmerged method slot_requests slot_seconds explore backend precision device",
    advanced="blend hold_back low_memory engine engine_urls",
)
@options_of(
    StartConfig,
    "start",
    common="history experts state token_file admin_token_file",
    advanced="blend_only base check adopt force",
)
def serve(
    *,
    checkpoint: Annotated[str | None, Argument(help="Folder, hub id, list of experts, or the embedded model.")] = None,
    config: Annotated[Path | None, Option(help="TOML file of settings.", rich_help_panel=COMMON)] = None,
    ray: Annotated[bool, advanced("--ray", help="Answer by replicas on a Ray cluster.")] = False,
    replicas: Annotated[int | None, advanced(help="With --ray: how many. Default: 2.")] = None,
    ray_address: Annotated[str | None, advanced(help="With --ray: its address. Default: start one.")] = None,
    backup: Annotated[Path | None, advanced(help="Only copy --state to this folder.")] = None,
    verbose: Annotated[bool, advanced("--verbose", help="Log every request too.")] = False,
    start: Given,
    serve: Given,
    http: Given,
) -> None:
    """Serve many experts at the cost of a dense model that follows its traffic and learns from feedback."""
    settings = configuration.with_options(configuration.load(config), serve=serve, http=http)
    origin = read(StartConfig, start | {"checkpoint": checkpoint}, source="options")
    if backup is not None:
        from tanbr.serve.backup import back_up

        console.print(f"copied to {escape(str(back_up(origin.state, backup)))}")
        return
    from tanbr.serve.web import logs
    from tanbr.serve.web.auth import Tokens

    logs.to_stream(level=logging.DEBUG if verbose else logging.INFO)
    tokens = Tokens.read(os.environ, token_file=origin.token_file, admin_token_file=origin.admin_token_file)
    if not ray and (replicas is not None or ray_address is not None):
        raise InputError("--replicas and --ray-address are for serving on Ray; give --ray as well")
    if ray and settings.serve.engine is not None:
        raise InputError("--ray and --engine do not go together: an engine scales by itself; leave one of them out")
    if ray:
        saved = _on_ray(origin, settings, tokens, replicas=replicas or 2, address=ray_address)
    else:
        saved = _here(origin, settings, tokens)
    if not saved:
        raise OutputError(f"what was learned last could not be saved in {origin.state}; the log above says why")
    console.print(f"stopped; what was learned is in {escape(str(origin.state))}")


def _here(origin: StartConfig, settings: configuration.Config, tokens: "Tokens") -> bool:
    """Serve until a signal; whether what was learned is saved."""
    with contextlib.ExitStack() as stack:
        # Half a million objects, mostly of libraries, stay: to search them for garbage takes .8 s of a start, and later
        # each full search would hold up every request for 0.2 s.
        gc.disable()
        stack.callback(gc.enable)
        from tanbr.serve import tracing
        from tanbr.serve.web import logs
        from tanbr.serve.web.server import Server, address_of, bind

        tracing.start()
        socket = stack.enter_context(bind(settings.http))  # one that is taken is found before the model is loaded
        url, loopback = address_of(socket)

        from tanbr.serve.build import build
        from tanbr.serve.web.metrics import Metrics

        metrics, backend = Metrics(), None
        if settings.serve.engine is not None or settings.serve.engine_urls:
            from tanbr.engines import engine_builder  # a client for HTTP takes long to import

            backend = engine_builder(settings.serve)
        with phases() as report:
            service = build(
                **origin.model_dump(exclude={"token_file", "admin_token_file"}),
                config=settings.serve,
                router=settings.router,
                monitor=settings.monitor,
                observer=metrics,
                backend=backend,
                report=report,
            )
        gc.freeze()
        gc.enable()
        if service.check is not None:
            show_check(service.check)
        running = Server(service, config=settings.http, tokens=tokens, metrics=metrics, loopback=loopback)
        console.print(_banner(url, service.info, service.state(), state=origin.state, tokens=tokens))
        if not loopback and not tokens.closed:
            text = f"{url} is open to everybody who reaches it: set TANBR_TOKEN"
            logs.say("public", level=logging.WARNING, text=text)
        stop, most = running.handle_exit, settings.http.stop_seconds

        def announced(number: int, frame: Any) -> None:
            said = f"finishing what was accepted (at most {most:g} s), then saving; again ends at once"
            console.print(f"stopping: {said}")
            stop(number, frame)

        running.handle_exit = announced  # type: ignore[method-assign, assignment]
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when all is done
            running.run(sockets=[socket])
        return bool(service.learning.saved)


def _on_ray(
    origin: StartConfig, settings: configuration.Config, tokens: "Tokens", *, replicas: int, address: str | None
) -> bool:
    """Serve until a signal, with replicas on a Ray cluster; whether what was learned is saved."""
    from tanbr.fleet.ray import ClusterConfig, run
    from tanbr.serve.web.server import bind

    with bind(settings.http) as taken:  # a port that is taken is found at once; Ray's proxy binds it again
        http = settings.http.model_copy(update={"port": int(taken.getsockname()[1])})
    sections = {"serve": settings.serve, "router": settings.router, "monitor": settings.monitor, "http": http}
    values = origin.model_dump() | sections | {"check": False, "replicas": replicas}
    config = read(ClusterConfig, values, source="options")
    stop = threading.Event()

    def ready(url: str, info: "ServiceInfo", now: "ServiceState") -> None:
        on_signals(lambda *_: stop.set())  # Ray has installed its own
        table = _banner(url, info, now, state=origin.state, tokens=tokens)
        table.add_row("replicas", f"{config.replicas} on Ray, {config.cpus} core each, and one learner")
        console.print(table)

    return run(config, address=address, stop=stop, ready=ready)


def _banner(url: str, info: "ServiceInfo", now: "ServiceState", *, state: Path, tokens: "Tokens") -> Table:
    slot = [f"{info.slot_requests} requests"] if info.slot_requests else []
    slot += [f"{info.slot_seconds:g} seconds"] if info.slot_seconds else []
    spare = f" + {decimal(info.spare_bytes)} spare" if info.spare_bytes else ""
    several = f"{info.models} models side by side, " if info.models > 1 else ""
    loaded = f"{several}{decimal(info.loaded_bytes)}{spare}, {info.loaded_parameters / 1e6:.3g} M parameters"
    full = f"{decimal(info.full_bytes)}, {info.full_parameters / 1e6:.3g} M parameters, left on disk"
    if info.saves_from is not None:
        full += f", no more than is loaded: memory is saved from {info.saves_from} experts on"
    access = "with a token" if tokens.closed else "without a token"
    names = ", ".join(token.name for token in tokens.known.values() if token.name)
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("[bold]tanbr[/]", f"[bold]{url}[/]"),
        ("model", escape(f"{info.model} ({info.family}): {info.experts} experts at {info.sites} sites")),
        ("tasks", escape(", ".join(info.tasks))),
        ("loaded", f"{loaded}, {info.precision} by {info.backend} on {info.device}"),
        ("un-merged", full),
        ("slot", " or ".join(slot)),
        ("state", escape(f"{state}: slot {now.slot}, merge version {now.merge_version}, {now.phase}")),
        ("access", f"{access}; administration {'with its token' if tokens.administered else 'off'}"),
        *([("clients", escape(names))] if names else []),
    ):
        table.add_row(name, value)
    return table
