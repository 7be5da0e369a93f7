"""Requests to ψ: the task mix of untagged traffic."""

from tanbr.monitor.monitor import Method, Monitor

__all__ = ["Method", "Monitor"]
