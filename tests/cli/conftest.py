from collections.abc import Iterator

import pytest

from serve.web.fake import FakeService
from serve.web.live import BOTH, live


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService()


@pytest.fixture(scope="module")
def url(service: FakeService) -> Iterator[str]:
    """Address of a server that asks for tokens."""
    with live(service, tokens=BOTH) as address:
        yield address
