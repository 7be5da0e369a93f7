import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers of pytest-xdist share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pytest
import torch

from browsing import browser
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe import embedded

torch.set_num_threads(1)
__all__ = ["browser"]  # a fixture for every test


@pytest.fixture(scope="session")
def moe() -> Moe:
    """The embedded model."""
    return open_moe(embedded.path())
