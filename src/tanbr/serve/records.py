"""The values that a `Service` takes and gives: plain, frozen, ready for JSON with `dataclasses.asdict`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from tanbr.errors import TanbrError
from tanbr.loop.slot import Phase, Reason
from tanbr.types import Account, Blend, Counts, FloatArray, Reward, SlotRecord, TaskMix

Outcome: TypeAlias = Literal["accepted", "repeated", "unknown"]
OnToken: TypeAlias = Callable[[int, str], None]  # which prompt, the text that was added to its answer


class Overloaded(TanbrError):  # noqa: N818 - what a client sees, not a fault
    """The queue is full; `retry_after` seconds from now it should not be."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after:.1f} seconds")
        self.retry_after = retry_after


class Stopping(TanbrError):  # noqa: N818
    """The service takes no more requests: it has not started, or is finishing what it accepted."""


class ServiceError(TanbrError):
    """A request that was accepted could not be answered; it is safe to send it again."""


@dataclass(frozen=True)
class Why:
    """Why the served blend was chosen, by the router's own belief at that time."""

    sentence: str
    mean: float  # reward that the router expected of it
    uncertainty: float  # what it may have hidden
    bound: float  # mean, uncertainty and granularity: the most it seemed able to earn


@dataclass(frozen=True)
class ServiceInfo:
    """What is served; known once the model is loaded, and constant."""

    model: str  # name of the checkpoint's folder
    family: str  # model_type of the MoE
    kind: Literal["classifier", "text"]  # `submit` and logits, or `generate` and texts
    experts: int  # K
    expert_names: tuple[str, ...]  # (K,) the task that each expert was trained for, or "expert 1" …
    sites: int  # FFNs with K experts
    tasks: tuple[str, ...]  # V names, the order of every task mix and reward
    columns: tuple[str, ...]  # names of the logits' columns; empty for text
    classes: int  # how many of the columns are labels (they come first); the others are graded tasks' scores
    scales: dict[str, tuple[float, float]]  # graded task → its scale: score = low + (high − low)·sigmoid(logit)
    loaded_parameters: int  # of the dense model that answers
    loaded_bytes: int
    spare_bytes: int  # the spare FFN buffer; 0 with low_memory
    full_parameters: int  # of the whole MoE, which stays on disk
    full_bytes: int
    precision: str  # fp32 or int8
    int8_agreement: float | None  # measured on the probe texts; None in fp32
    device: str
    max_tokens: int  # most that `generate` writes for one prompt
    slot_requests: int | None
    slot_seconds: float | None
    models: int = 1  # G, most that answer side by side
    backend: str = "torch"  # what runs it


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers to the texts of one `submit`."""

    request_ids: tuple[str, ...]  # (n,)
    logits: FloatArray  # (n, columns)
    merge_version: int  # of the first text
    cut: tuple[int, ...] = ()  # (n,) tokens left out of each text because it was too long; empty if of none
    merge_versions: tuple[int, ...] = ()  # (n,) of a panel, whose models answer side by side; empty if all by one


@dataclass(frozen=True)
class Generated:
    """Texts for the prompts of one `generate`."""

    request_ids: tuple[str, ...]  # (n,)
    texts: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    completion_tokens: tuple[int, ...]
    finish_reasons: tuple[Literal["stop", "length"], ...]
    merge_version: int  # of the first prompt
    cut: tuple[int, ...] = ()  # (n,) tokens left out of each prompt because it was too long; empty if of none
    merge_versions: tuple[int, ...] = ()  # (n,) of a panel, whose models answer side by side; empty if all by one


@dataclass(frozen=True)
class Feedback:
    """What a client says of one answer: a reward in [0, 1], or the true label (or score), which is scored here."""

    request_id: str
    reward: float | None = None
    task: str | None = None  # needed with `label`; without it the monitor's posterior shares the reward out
    label: str | float | None = None


@dataclass(frozen=True)
class Receipt:
    """What became of each piece of feedback; whatever is accepted is on disk."""

    outcomes: tuple[Outcome, ...]  # in the order of the items

    @property
    def accepted(self) -> int:
        """How many are new."""
        return self.outcomes.count("accepted")

    @property
    def repeated(self) -> int:
        """How many were there already (nothing changes: the first counts)."""
        return self.outcomes.count("repeated")

    @property
    def unknown(self) -> int:
        """How many name no request that this server answered within the slots it keeps."""
        return self.outcomes.count("unknown")


@dataclass(frozen=True)
class Alarm:
    """Something an operator should know."""

    time: float  # seconds since 1970
    slot: int
    text: str


@dataclass(frozen=True, eq=False)
class ModelView:
    """One of the models that answer side by side."""

    merge_version: int
    blend: Blend  # (K,)
    tasks: tuple[str, ...]  # that are sent to it
    expected: float  # share of the requests that these should be
    requests: int  # that it has answered in this slot
    reward: float  # mean of the rewards that came for it; NaN if none did


@dataclass(frozen=True, eq=False)
class ServiceState:
    """What the service is doing now."""

    slot: int
    merge_version: int
    task_mix: TaskMix  # (V,) forecast that the slot's blend was chosen for
    blend: Blend  # (K,) as served
    reward: Reward  # (V,) of the last slot whose reward was told; NaN where unseen
    counts: Counts  # (V,)
    estimated_regret: float  # how far, by the router's own belief, the served blend is below its best; NaN if unknown
    requests: int  # answered in this slot
    answered: int  # since the process started
    queue: int  # texts that wait
    phase: Phase
    why: Why | None  # of the served blend; None if the router did not choose it
    pinned: bool
    shares: dict[str, float]  # source → share of the rewards it gave in the last told slot
    alarms: tuple[Alarm, ...]  # newest first
    last_merge_seconds: float
    last_pause_seconds: float  # how long low_memory's merge kept requests waiting; the swap itself otherwise
    uptime: float
    models: tuple[ModelView, ...] = ()  # that answer; merge_version and blend are those of the first
    exploration: Account | None = None  # what it has cost and may cost; None if the router has no baseline


@dataclass(frozen=True, eq=False)
class SlotView:
    """A slot as the store remembers it."""

    record: SlotRecord
    started: float  # seconds since 1970
    ended: float | None  # None while it is open
    requests: int
    told: bool  # whether the router has its reward
    unknown: float  # share of requests unlike any task
    estimate: TaskMix | None  # (V,) mix that the monitor saw, once the slot has ended
    estimated_regret: float  # of the served blend, by what the router believed when the slot opened; NaN if unknown
    reason: Reason  # why the slot serves its blend
    note: str  # more about that, in words; "" if it is the router's choice


@dataclass(frozen=True, eq=False)
class VersionView:
    """A merge version that can be rolled back to."""

    merge_version: int
    blend: Blend  # (K,)
    created: float  # seconds since 1970
    good: bool  # False once the guard has refused it
    instant: bool  # whether it is still in a buffer: rolling back to it merges nothing
    requests: int
    reward: float  # mean over its rewarded requests, NaN without any


class Observer(Protocol):
    """Hears what happens, from the service's own threads: it must be quick and must not raise."""

    def batch(self, size: int, seconds: float) -> None:
        """A batch of `size` texts was answered; `seconds` from its forming to its answers."""
        ...

    def queue(self, depth: int) -> None:
        """So many texts wait."""
        ...

    def merged(self, seconds: float, version: int) -> None:
        """A merge took so long, and is served from now on."""
        ...

    def slot(self, record: SlotRecord) -> None:
        """A slot's reward was told to the router."""
        ...

    def alarm(self, text: str) -> None:
        """Something went wrong, or drifts."""
        ...


class Silent:
    """An observer that does nothing."""

    def batch(self, size: int, seconds: float) -> None:
        """Ignore it."""

    def queue(self, depth: int) -> None:
        """Ignore it."""

    def merged(self, seconds: float, version: int) -> None:
        """Ignore it."""

    def slot(self, record: SlotRecord) -> None:
        """Ignore it."""

    def alarm(self, text: str) -> None:
        """Ignore it."""


__all__ = [
    "Alarm",
    "Answered",
    "Feedback",
    "Generated",
    "ModelView",
    "Observer",
    "OnToken",
    "Outcome",
    "Overloaded",
    "Phase",
    "Reason",
    "Receipt",
    "ServiceError",
    "ServiceInfo",
    "ServiceState",
    "Silent",
    "SlotView",
    "Stopping",
    "VersionView",
    "Why",
]
