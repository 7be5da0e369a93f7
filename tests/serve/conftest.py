from collections.abc import Iterator
from typing import Any

import pytest

from tanbr.serve.store import Store


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
