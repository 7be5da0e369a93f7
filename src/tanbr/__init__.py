"""Serve a Mixture-of-Experts model at the cost of a dense one.

Three stages that can be used alone:

    router = tanbr.Tanbr(experts=8, tasks=8)  # chooses blends, learns from rewards (NumPy only)
    monitor = tanbr.Monitor(["sentiment", "summary"])  # the task mix of untagged requests
    moe = tanbr.open("checkpoint/")  # merges experts into one dense model; none is in memory
"""

from typing import TYPE_CHECKING, Any

from tanbr.errors import TanbrError
from tanbr.types import Decision, SlotMix, SlotRecord

if TYPE_CHECKING:
    from tanbr.merge import Moe, open  # noqa: A004
    from tanbr.monitor import Monitor
    from tanbr.router import Tanbr

__version__ = "0.2.0"
__all__ = [
    "Decision",
    "Moe",
    "Monitor",
    "SlotMix",
    "SlotRecord",
    "Tanbr",
    "TanbrError",
    "embedded",
    "open",
]

_WHERE = {"Moe": "tanbr.merge", "open": "tanbr.merge", "Monitor": "tanbr.monitor", "Tanbr": "tanbr.router"}


def __getattr__(name: str) -> Any:
    """Load a stage when its name is first used: the router alone needs no torch."""
    if name not in _WHERE:
        raise AttributeError(f"module 'tanbr' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)


def embedded() -> str:
    """Give the path of the small BERT-MoE that the package carries."""
    from tanbr.moe.embedded import path

    return str(path())
