"""The service: everything below HTTP. Thread-safe; one thread makes batches, one runs the slots."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from numpy.typing import ArrayLike

from tanbr.config import ServeConfig
from tanbr.merge import Moe
from tanbr.monitor import Monitor
from tanbr.router import TreeView
from tanbr.serve.records import (
    Answered,
    Feedback,
    Generated,
    Observer,
    OnToken,
    Receipt,
    ServiceInfo,
    ServiceState,
    SlotView,
    VersionView,
)
from tanbr.tasks.rows import Row, Task
from tanbr.types import Router, Text


class Service:
    """Answers requests with one merged model, follows the traffic, and learns from rewards."""

    def __init__(
        self,
        moe: Moe,
        *,
        tasks: Sequence[Task],
        config: ServeConfig,
        state: Path,
        router: Router | None = None,
        monitor: Monitor | None = None,
        probes: Sequence[Row] = (),
        observer: Observer | None = None,
    ) -> None:
        """Load the model, and resume from `state` (a folder, made if missing) what was learned there before.

        `router` and `monitor` are for the first start; a state that is there already wins. Raises TanbrError for
        anything a user can put right. `serve.build.build` makes a service of a checkpoint's path and a configuration.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Start the threads; `ready` is true when this returns."""
        raise NotImplementedError

    def stop(self, timeout: float = 30.0) -> bool:
        """Refuse new requests, answer what was accepted, save; whether it all was done in time."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        raise NotImplementedError

    @property
    def info(self) -> ServiceInfo:
        """What is served."""
        raise NotImplementedError

    def submit(self, texts: Sequence[Text]) -> "Future[Answered]":
        """Answer texts with a classifier; quick, never blocks.

        Raises Overloaded or Stopping at once. The future holds Answered, or a ServiceError.
        """
        raise NotImplementedError

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int | None = None, on_token: OnToken | None = None
    ) -> "Future[Generated]":
        """Write an answer to each prompt with a text-to-text or causal model, greedily; quick, never blocks.

        `on_token` hears each piece of text as it is made, from the batching thread. A cancelled future ends early.
        Raises and fails as `submit` does.
        """
        raise NotImplementedError

    def feedback(self, items: Sequence[Feedback]) -> Receipt:
        """Take in rewards; they are on disk when this returns. Blocks for a few milliseconds.

        Raises InputError, with nothing taken in, for a reward outside [0, 1], an unknown task or label.
        """
        raise NotImplementedError

    def state(self) -> ServiceState:
        """What the service is doing now."""
        raise NotImplementedError

    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]:
        """The newest slots first, those before slot `before` if it is given."""
        raise NotImplementedError

    def versions(self) -> list[VersionView]:
        """The merge versions that can be rolled back to, newest first."""
        raise NotImplementedError

    def tree(self) -> TreeView | None:
        """The router's search tree; None for a router without one."""
        raise NotImplementedError

    def pin(self, target: ArrayLike | int) -> int:
        """Serve one blend (K,), or a merge version by its number, until `unpin`; its merge version.

        Blocks while it merges. Raises InputError for a bad blend or an unknown version.
        """
        raise NotImplementedError

    def unpin(self) -> None:
        """Let the router choose again, from the next slot on."""
        raise NotImplementedError

    def rollback(self, version: int | None = None) -> int:
        """Serve an earlier merge version (the last good one before the present if None) until the slot ends.

        The router is told that the blend it chose was bad. Blocks while it merges, if it must. Raises InputError.
        """
        raise NotImplementedError

    def end_slot(self) -> int:
        """End the slot now; blocks until the next is open, and gives its number. Raises ServiceError if it failed."""
        raise NotImplementedError
