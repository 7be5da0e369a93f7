"""Requests to ψ: the task mix of untagged traffic, and what a single request's task is."""

from tanbr.monitor.monitor import Monitor

__all__ = ["Monitor"]
