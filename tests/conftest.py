import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers of pytest-xdist share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from browsing import browser
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.serve.store import Store

__all__ = ["browser"]  # a fixture for every test
pytest_plugins = ["leftovers"]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# A busy machine is slow: no test fails by that. Every run tries the same examples, unless it is told to explore.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("same"), derandomize=False, database=None, max_examples=1000)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)


@pytest.fixture(scope="session")
def moe() -> Moe:
    """The embedded model."""
    return open_moe(embedded.path())


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A folder for what takes long to make."""
    return tmp_path_factory.mktemp("taught")


@pytest.fixture(autouse=True)
def closed_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test has left open: a process that ends does the same."""
    opened: list[Store] = []
    make = Store.__init__

    def remembered(store: Store, *arguments: Any, **named: Any) -> None:
        make(store, *arguments, **named)
        opened.append(store)

    monkeypatch.setattr(Store, "__init__", remembered)
    yield
    for store in opened:
        store.close()
