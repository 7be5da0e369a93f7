"""One request on its way through the batcher."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tanbr.moe.text import Columns
from tanbr.monitor.recogniser import Recognition
from tanbr.serve.decode import Written
from tanbr.serve.records import Answered, Generated, OnToken
from tanbr.serve.sampling import Sampling
from tanbr.types import FloatArray, Text


@dataclass(eq=False)
class Job:
    """The texts of one request, what became of them so far, and who waits for it."""

    texts: Sequence[Text]
    max_tokens: int | None = None  # to write for each prompt; None: as many as there is room for
    on_token: OnToken | None = None
    sampling: tuple[Sampling | None, ...] = ()  # (n,) how the words of each answer are drawn; empty: greedily
    stop: tuple[str, ...] = ()  # strings before the first of which an answer ends
    future: "Future[Any]" = field(default_factory=Future)
    columns: Columns = field(default_factory=dict)
    cut: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()  # tokens to write for each prompt
    written: dict[int, Written] = field(default_factory=dict)  # prompt → what was written for it
    streamed: bool = False  # whether its client has seen a part of an answer
    left: bool = False  # whether the model thread has no more to do with it
    named: FloatArray | None = None  # (V,) 1 for the tasks that its client has named, if it has
    seen: Recognition | None = None  # what its texts say about their tasks, where that was asked for
    posteriors: FloatArray | None = None  # (n, V) the same, weighed by the slot's mix and by what the client has named
    place: int = 0  # of the model that answers it, in the lineup
    whole: "Job | None" = None  # that it is a part of

    @property
    def wanted(self) -> bool:
        """Whether the model has work to do for it, and somebody waits."""
        return not self.left and not self.future.cancelled() and (self.whole is None or self.whole.wanted)

    def resolve(self, answer: Answered | Generated) -> None:
        """Give the client its answer, if it still waits."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Tell the client why there is no answer, if it still waits."""
        fail(self.future, error)


def fail(future: "Future[Any]", error: Exception) -> None:
    """Tell who waits for a future why there is no result."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
