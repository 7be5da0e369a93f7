"""Requests to ψ: the task mix of untagged traffic, and what a single request's task is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tanbr.monitor.monitor import Method, Monitor
    from tanbr.monitor.recogniser import Recogniser, Recognition

__all__ = ["Method", "Monitor", "Recogniser", "Recognition"]

_WHERE = {"Method": "monitor", "Monitor": "monitor", "Recogniser": "recogniser", "Recognition": "recogniser"}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: importing the settings alone does not load scikit-learn."""
    if name not in _WHERE:
        raise AttributeError(f"module 'tanbr.monitor' has no attribute {name!r}")
    return getattr(import_module(f"tanbr.monitor.{_WHERE[name]}"), name)
