"""From a checkpoint's path and a configuration to a `Service`."""

from pathlib import Path

from tanbr.config import Config
from tanbr.serve.records import Observer
from tanbr.serve.service import Service


def build(
    checkpoint: str | Path | None,
    *,
    config: Config,
    state: Path,
    history: Path | None = None,
    observer: Observer | None = None,
) -> Service:
    """Make a service, not yet started, of a checkpoint (the embedded model if None).

    `history` is a JSONL file of {"text": …, "task": …, "label": …?} lines, text a string or a pair: it names the
    tasks, teaches the monitor, and its labelled lines are the guard's probes. A foreign checkpoint without one gets
    latent tasks, as many as experts, that the monitor finds in the traffic.
    """
    raise NotImplementedError
