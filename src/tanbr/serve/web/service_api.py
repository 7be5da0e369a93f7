"""What the web needs of a service: `serve.service.Service` has it, and so has the fake of the tests."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from numpy.typing import ArrayLike

from tanbr.router import TreeView
from tanbr.serve.records import (
    Answered,
    Feedback,
    Generated,
    OnToken,
    Receipt,
    ServiceInfo,
    ServiceState,
    SlotView,
    VersionView,
)
from tanbr.serve.sampling import Manner
from tanbr.types import Text


@runtime_checkable
class ServiceApi(Protocol):
    """Answers, learns, tells what it does, and is steered; every method may be called from any thread."""

    def start(self) -> None:
        """Begin to answer."""
        ...

    def stop(self, timeout: float = 30.0) -> bool:
        """Finish what was accepted and save; whether it all was done in time."""
        ...

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        ...

    @property
    def info(self) -> ServiceInfo:
        """What is served."""
        ...

    @property
    def client_secret(self) -> bytes:
        """What clients' keys are made with: kept in the state, as the evidence about clients is."""
        ...

    def faults(self) -> tuple[str, ...]:
        """What is broken, a sentence each; none if all is well. Quick, never blocks."""
        ...

    def submit(
        self, texts: Sequence[Text], *, task: str | None = None, labels: Sequence[str] = ()
    ) -> "Future[Answered]":
        """Answer texts, of a task or with labels that the client names; quick. A cancelled future is not answered."""
        ...

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int | None = None,
        manner: Manner = Manner(),  # noqa: B008 - it is frozen
        on_token: OnToken | None = None,
        task: str | None = None,
    ) -> "Future[Generated]":
        """Write `manner.n` answers to each prompt, those of the first prompt first; quick, never blocks.

        A cancelled future ends early.
        """
        ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> "Future[str]":
        """Make a prompt of a conversation, of roles and contents; never blocks.

        The future fails with an InputError if the model has no way to, a CheckpointError if its template is bad.
        """
        ...

    def feedback(self, items: Sequence[Feedback], *, client: str = "") -> Receipt:
        """Take in rewards of one client; they are on disk when this returns."""
        ...

    def state(self) -> ServiceState:
        """What the service is doing now."""
        ...

    def slots(self, limit: int = 100, before: int | None = None) -> list[SlotView]:
        """The newest slots first."""
        ...

    def versions(self) -> list[VersionView]:
        """The merge versions that can be rolled back to, newest first."""
        ...

    def tree(self) -> TreeView | None:
        """The router's search tree; None for a router without one."""
        ...

    def pin(self, target: ArrayLike | int) -> int:
        """Serve one blend (K,), or a merge version by its number, until `unpin`; its merge version."""
        ...

    def unpin(self) -> None:
        """Let the router choose again."""
        ...

    def rollback(self, version: int | None = None) -> int:
        """Serve an earlier merge version until the slot ends."""
        ...

    def end_slot(self) -> int:
        """End the slot now; the number of the next."""
        ...
