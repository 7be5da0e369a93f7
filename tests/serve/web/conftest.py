from collections.abc import Iterator

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import client, live


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService()


@pytest.fixture(scope="module")
def url(service: FakeService) -> Iterator[str]:
    with live(service, body_bytes=4096, text_chars=100, inputs=4, answer_seconds=0.3) as address:
        yield address


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx2.Client]:
    with client(url) as made:
        yield made
