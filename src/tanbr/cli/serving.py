"""`tanbr serve`."""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from tanbr.cli.display import console
from tanbr.cli.replicas import serve_on_ray
from tanbr.cli.running import DEVICE, ConfigFile
from tanbr.errors import InputError, OutputError
from tanbr.lab import settings as configuration

if TYPE_CHECKING:
    from tanbr.serve.records import ServiceInfo, ServiceState
    from tanbr.serve.web.auth import Tokens

app = typer.Typer()


@app.command(
    epilog="Examples:\n\n    tanbr serve\n\n    tanbr serve moe/ --slot-requests 256 --state moe-state/\n\n"
    "    tanbr serve moe/ --models 2\n\n"
    "    tanbr groups qwen/ --into 8 && tanbr serve qwen/ --groups out/groups.json\n\n"
    "    tanbr serve experts.toml --history past.jsonl\n\n"
    "    tanbr serve mixtral/ --engine vllm --engine-url http://127.0.0.1:8100\n\n"
    "    tanbr serve moe/ --ray --replicas 4\n\n"
    "    TANBR_ADMIN_TOKEN=$(openssl rand -hex 24) tanbr serve moe/ --backend int8 --port 9000"
)
def serve(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            help="Folder of an MoE checkpoint, a hub id, or a list of experts. Default: the embedded model."
        ),
    ] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option("--expert", help="A fine-tuned copy or LoRA adapter of the checkpoint; repeatable."),
    ] = None,
    blend_only: Annotated[
        Literal["all", "ffn"] | None,
        typer.Option(help="With experts over a base: blend all that differs, or only FFNs and keep the base's rest."),
    ] = None,
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: this machine only.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    state: Annotated[
        Path, typer.Option(help="Folder for what is learned; a server that starts there again continues.")
    ] = Path("out/serve"),
    history: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines {"text", "task", "label"?}, or your labelled files, to teach the monitor the tasks.'
        ),
    ] = None,
    models: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of merged models to serve side by side; each request goes to the best for its task."
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Serve as many models side by side as fit into this much memory, as 300MB.")
    ] = None,
    answers: Annotated[
        Literal["labels", "posterior"] | None,
        typer.Option(help="With posterior, weigh a label by the chance that the text's task has it."),
    ] = None,
    slot_requests: Annotated[int | None, typer.Option(help="End a slot after this many requests …")] = None,
    slot_seconds: Annotated[float | None, typer.Option(help="… or after this many seconds.")] = None,
    backend: Annotated[
        Literal["torch", "int8", "onnx"] | None,
        typer.Option(help="What runs the model: torch, torch in int8, or ONNX Runtime (extra onnx)."),
    ] = None,
    device: Annotated[str | None, DEVICE] = None,
    engine: Annotated[
        Literal["vllm", "llamacpp"] | None,
        typer.Option(help="Load merges (of adapters: one adapter) into this running engine and let it generate."),
    ] = None,
    engine_url: Annotated[str | None, typer.Option(help="Address of the engine, as http://127.0.0.1:8100.")] = None,
    low_memory: Annotated[
        bool | None, typer.Option("--low-memory", help="Merge in place, with a pause, instead of into a spare buffer.")
    ] = None,
    explore: Annotated[
        Literal["never", "careful", "always"] | None,
        typer.Option(help="When the router may leave the start blend; careful waits for rewards."),
    ] = None,
    blend: Annotated[
        str | None, typer.Option(help="Start blend: even, proportional, or weights, as 0.5,0.5,0,0.")
    ] = None,
    survey: Annotated[
        Path | None, typer.Option(help="File from `tanbr survey`: its best blend for the mix becomes the start blend.")
    ] = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="File from `tanbr survey`: the router learns from it before its first slot.")
    ] = None,
    groups: Annotated[
        Path | None, typer.Option(help="File from `tanbr groups`: the router learns over groups of experts.")
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Keep what a state of another checkpoint or other settings has learned, as a prior.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Serve even if `tanbr inspect` says not to merge.")] = False,
    method: Annotated[str | None, typer.Option(help="How blends are merged: average, regression, ties, …")] = None,
    regression: Annotated[bool, typer.Option("--regression", hidden=True)] = False,
    rate: Annotated[float | None, typer.Option(help="Most requests per second from one client.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the clients' token (or set TANBR_TOKEN).")] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(help="File with the operators' token (or set TANBR_ADMIN_TOKEN).")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Answer with replicas on a Ray cluster; starts one if it finds none.")
    ] = False,
    replicas: Annotated[int | None, typer.Option(help="With --ray: number of replicas. Default: 2.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="With --ray: address of the cluster.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every request too.")] = False,
) -> None:
    """Serve an MoE as one dense model that follows its traffic and learns from feedback, with HTTP and a dashboard."""
    settings = configuration.with_options(
        configuration.load(config),
        serve={
            "models": models,
            "memory": memory,
            "answers": answers,
            "slot_requests": slot_requests,
            "slot_seconds": slot_seconds,
            "backend": backend,
            "device": device,
            "engine": engine,
            "engine_url": engine_url,
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
    if not ray and (replicas is not None or ray_address is not None):
        raise InputError("--replicas and --ray-address are for serving on Ray; give --ray as well")
    if ray and settings.serve.engine is not None:
        raise InputError("--ray and --engine do not go together: an engine scales by itself; leave one of them out")
    if ray:
        what: dict[str, Any] = {"checkpoint": checkpoint, "experts": expert or (), "blend_only": blend_only}
        what |= {"state": state, "history": history, "survey": survey, "warm_start": warm_start, "groups": groups}
        what |= {"token_file": token_file, "admin_token_file": admin_token_file, "replicas": replicas or 2}
        serve_on_ray(what | {"adopt": adopt, "force": force}, settings, tokens, address=ray_address, banner=_banner)
        return
    with bind(settings.http) as socket:
        url, loopback = address_of(socket)
        logs.to_stream(level=logging.DEBUG if verbose else logging.INFO)

        from tanbr.engines import engine_builder
        from tanbr.serve.build import build
        from tanbr.serve.web.metrics import Metrics

        metrics = Metrics()
        observer = Observers([metrics, logs.Journal()])
        service = build(
            checkpoint,
            experts=expert or (),
            blend_only=blend_only,
            config=settings.serve,
            router=settings.router,
            monitor=settings.monitor,
            state=state,
            history=history,
            survey=survey,
            warm_start=warm_start,
            groups=groups,
            adopt=adopt,
            force=force,
            observer=observer,
            backend=engine_builder(settings.serve),
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
    if given in (None, "even", "proportional"):
        return given
    if given == "uniform":  # as it was once called
        return "even"
    try:
        return tuple(float(weight) for weight in given.split(","))
    except ValueError:
        raise InputError(f"--blend must be even, proportional, or weights by comma (got {given!r})") from None


def _banner(url: str, info: "ServiceInfo", now: "ServiceState", *, state: Path, tokens: "Tokens") -> Table:
    slot = [f"{info.slot_requests} requests"] if info.slot_requests else []
    slot += [f"{info.slot_seconds:g} seconds"] if info.slot_seconds else []
    spare = f" + {_size(info.spare_bytes)} spare" if info.spare_bytes else ""
    several = f"{info.models} models side by side, " if info.models > 1 else ""
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("[bold]tanbr[/]", f"[bold]{url}[/]"),
        ("model", escape(f"{info.model} ({info.family}): {info.experts} experts at {info.sites} sites")),
        ("tasks", escape(", ".join(info.tasks))),
        (
            "loaded",
            f"{several}{_size(info.loaded_bytes)}{spare}, {info.loaded_parameters / 1e6:.3g} M parameters, "
            f"{info.precision} by {info.backend} on {info.device}",
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
