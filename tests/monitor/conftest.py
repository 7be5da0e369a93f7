"""Small monitors: a fit of these takes milliseconds, and a test can reach their bounds."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tanbr.monitor.sketch.WIDTH", 512)
        patch.setattr("tanbr.monitor.knowledge.HISTORY", 64)
        patch.setattr("tanbr.monitor.slot.SAMPLE", 256)
        yield
