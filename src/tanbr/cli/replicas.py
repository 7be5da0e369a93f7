"""`tanbr serve --ray`: replicas on a Ray cluster."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tanbr.cli.display import console
from tanbr.cli.stopping import on_signals
from tanbr.config import read
from tanbr.errors import OutputError
from tanbr.lab.settings import Config

if TYPE_CHECKING:
    from tanbr.serve.records import ServiceInfo, ServiceState
    from tanbr.serve.web.auth import Tokens


def serve_on_ray(
    what: dict[str, Any], settings: Config, tokens: "Tokens", *, address: str | None, banner: Callable[..., Any]
) -> None:
    """Serve until a signal; `what` are fields of a `ClusterConfig`."""
    from tanbr.fleet.ray import ClusterConfig, run
    from tanbr.serve.web.server import bind

    with bind(settings.http) as taken:  # found out at once if it is taken; Ray's proxy takes it again
        port = int(taken.getsockname()[1])
    sections = {"serve": settings.serve, "router": settings.router, "monitor": settings.monitor}
    sections |= {"http": settings.http.model_copy(update={"port": port})}
    config = read(ClusterConfig, what | sections, source="options")
    stop = threading.Event()
    state: Path = config.state

    def ready(url: str, info: "ServiceInfo", now: "ServiceState") -> None:
        on_signals(lambda *_: stop.set())  # Ray has installed its own
        table = banner(url, info, now, state=state, tokens=tokens)
        table.add_row("replicas", f"{config.replicas} on Ray, {config.cpus} core each, and one learner")
        console.print(table)

    if not run(config, address=address, stop=stop, ready=ready):
        raise OutputError(f"what was learned last could not be saved in {state}; the log above says why")
    console.print(f"stopped; what was learned is in {escape(str(state))}")
