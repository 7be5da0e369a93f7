from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.serving import Ledger, service
from tanbr.serve import config
from tanbr.serve.service import Service


@pytest.fixture(autouse=True)
def no_thread_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a thread of low priority may not run for minutes."""
    monkeypatch.setattr(config, "NICE", 0)


@pytest.fixture
def run(tmp_path: Path, taught: Path) -> Iterator[Callable[..., Service]]:
    """Start services as `serving.service` makes them, with a ledger unless a router is given, and stop them."""
    started: list[Service] = []

    def made(state: Path = tmp_path, *, router: Any = Ledger, **settings: Any) -> Service:
        started.append(service(state, taught, router=Ledger() if router is Ledger else router, **settings))
        started[-1].start()
        return started[-1]

    yield made
    for one in started:
        one.stop()


@pytest.fixture
def live(run: Callable[..., Service]) -> Service:
    """A service that runs."""
    return run()
