from pathlib import Path

import pytest

from tanbr.merge import Moe
from tanbr.merge import open as open_moe


@pytest.fixture(scope="session")
def many(qwen: Path) -> Moe:
    """The experts of a Qwen3-MoE, 64 in eight families."""
    return open_moe(qwen)
