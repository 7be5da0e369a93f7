"""The document says what the server does: schemathesis makes requests of it, right and wrong ones, and compares."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from serve.web.fake import COLUMNS, TASKS, FakeService
from serve.web.live import ADMIN_TOKEN, TOKEN, BOTH, client, live

TRIED = settings(
    max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
CLASSIFIER, WRITER = FakeService(), FakeService("text")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with live(CLASSIFIER) as one, live(WRITER, tokens=BOTH) as two:
        yield {"classifier": one, "text": two}
