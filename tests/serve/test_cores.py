"""The cores, shared by the workers."""

import pytest

from tanbr.serve import cores
from tanbr.serve.config import ServeConfig
from tanbr.serve.cores import Cores


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (2, 2), (8, 8), (64, 8)])
def test_every_core_has_a_worker_up_to_a_point(monkeypatch: pytest.MonkeyPatch, count: int, workers: int) -> None:
    monkeypatch.setattr(cores, "usable", lambda: count)
    found = Cores.of(ServeConfig())
    assert found.workers == workers
    assert [found.threads(busy) for busy in range(1, workers + 1)] == [count // busy for busy in range(1, workers + 1)]


def test_what_is_said_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable", lambda: 4)
    assert Cores.of(ServeConfig(workers=3, threads=2)) == Cores(4, 3, 2)
    assert Cores(4, 3, 2).threads(1) == 2
    assert Cores.of(ServeConfig(device="cuda")).workers == 1
    assert Cores(4, 16).threads(16) == 1  # more workers than cores


def test_there_is_a_core() -> None:
    assert cores.usable() >= 1


def test_before_an_engine_workers_wait_and_need_no_cores() -> None:
    config = ServeConfig(engine="vllm", engine_url="http://127.0.0.1:9")
    assert (Cores.of(config).workers, Cores.of(config).threads(1)) == (32, 1)
    assert Cores.of(config.model_copy(update={"workers": 3})).workers == 3
