"""Requests to ψ: the task mix of untagged traffic, and what a single request's task is."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tanbr.monitor.monitor import Monitor

__all__ = ["Monitor"]


def __getattr__(name: str) -> Any:
    """Load the monitor when it is first used: importing the settings alone does not load scikit-learn."""
    if name != "Monitor":
        raise AttributeError(f"module 'tanbr.monitor' has no attribute {name!r}")
    from tanbr.monitor.monitor import Monitor

    return Monitor
