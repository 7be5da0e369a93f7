"""Requests to ψ: the task mix of untagged traffic, and what a single request's task is."""

from tanbr.monitor.monitor import Method, Monitor
from tanbr.monitor.recogniser import Recogniser, Recognition

__all__ = ["Method", "Monitor", "Recogniser", "Recognition"]
