"""The values that a service takes and gives. Clients see those that derive from `Shown` in JSON, NaN as null."""
# ruff: noqa: D102 - an observer's methods have a comment each

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, GetPydanticSchema, WithJsonSchema, computed_field
from pydantic_core import core_schema

from tanbr.errors import TanbrError
from tanbr.loop.holdback import Gain
from tanbr.loop.slot import Phase, Reason
from tanbr.types import FloatArray, SlotRecord, to_jsonable

NEAR = 0.01  # a smaller panel is taken if it earns within this of the best
KEPT = 0.9  # of what experts earn alone: a way that keeps less is not called good
Outcome: TypeAlias = Literal["accepted", "repeated", "unknown"]
OnToken: TypeAlias = Callable[[int, str], None]  # which prompt, the text that was added to its answer

_NUMBER: dict[str, Any] = {"type": "number"}
_OR_NULL: dict[str, Any] = {"anyOf": [_NUMBER, {"type": "null"}]}
_WRITE_ARRAY = core_schema.plain_serializer_function_ser_schema(to_jsonable)
_ARRAY = GetPydanticSchema(lambda _source, _handler: core_schema.any_schema(serialization=_WRITE_ARRAY))
Numbers: TypeAlias = Annotated[FloatArray, _ARRAY, WithJsonSchema({"type": "array", "items": _NUMBER})]
NumbersOrNaN: TypeAlias = Annotated[FloatArray, _ARRAY, WithJsonSchema({"type": "array", "items": _OR_NULL})]
FloatOrNaN: TypeAlias = Annotated[float, WithJsonSchema(_OR_NULL)]


class Overloaded(TanbrError):  # noqa: N818 - what a client sees, not a fault
    """The queue is full; `retry_after` seconds from now it should not be."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after:.1f} seconds")
        self.retry_after = retry_after


class Stopping(TanbrError):  # noqa: N818
    """The service takes no requests: it has not started, or is finishing what it accepted."""


class ServiceError(TanbrError):
    """A request that was accepted could not be answered; it is safe to send it again."""


class EngineAnswer(TanbrError):  # noqa: N818 - it is what the client gets
    """An engine's own refusal of a request, with its status and its JSON."""

    def __init__(self, status: int, body: str, said: str) -> None:
        super().__init__(said)
        self.status, self.body = status, body


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers to the texts of one `submit`."""

    request_ids: tuple[str, ...]  # (n,)
    logits: FloatArray  # (n, columns); of a sentence encoder, the vectors
    merge_version: int  # of the first text
    cut: tuple[int, ...] = ()  # (n,) tokens left out of each text because it was too long; empty if of none
    merge_versions: tuple[int, ...] = ()  # (n,) of a panel, whose models answer side by side; empty if all by one
    tokens: tuple[int, ...] = ()  # (n,) of each text, as the model read it


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


class Shown:
    """What clients see in JSON; the text below a field is its description in the OpenAPI document."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)


@dataclass(frozen=True)
class Receipt(Shown):
    """What became of each piece of feedback; whatever is accepted is on disk."""

    outcomes: tuple[Outcome, ...]
    """One for each piece, in order."""
    accepted: int
    """How many are new."""
    repeated: int
    """How many were there already; the first counts, so nothing changes."""
    unknown: int
    """How many name no answer that this server gave within the slots it keeps."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "Receipt":
        """Count what became of the pieces."""
        all_of = tuple(outcomes)
        return cls(all_of, all_of.count("accepted"), all_of.count("repeated"), all_of.count("unknown"))


@dataclass(frozen=True, kw_only=True)
class ServedModel(Shown):
    """What is served."""

    model: Annotated[str, Field(serialization_alias="name")]
    """Name of the checkpoint's folder."""
    family: str
    """model_type of the MoE."""
    kind: Literal["classifier", "encoder", "text"]
    """Whether the model classifies, embeds or writes."""
    experts: int
    expert_names: tuple[str, ...]
    """What each expert was trained for, its folder or its number, in the order of every blend; the base is "base"."""
    sites: int
    """FFNs that have experts."""
    models: int = 1
    """Most that answer side by side."""
    columns: Annotated[tuple[str, ...], Field(exclude=True)]
    """Names of the logits' columns, labels first, then graded tasks; empty for a model that writes."""
    classes: Annotated[int, Field(exclude=True)]
    """How many of the columns are labels."""
    loaded_bytes: int
    """Of the models that answer."""
    spare_bytes: int
    """Of the spare that the next blend is merged into; 0 with low_memory."""
    full_bytes: int
    """Of the un-merged experts, which stay on disk."""
    precision: Literal["fp32", "bf16", "int8"]
    """Of the arithmetic."""
    device: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def labels(self) -> tuple[str, ...]:
        """What a classifier answers with."""
        return self.columns[: self.classes]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def saves_from(self) -> int | None:
        """From how many experts on these models and the spare take less than un-merged experts; null if they do now."""
        least, loaded = self.models + 1 + (self.spare_bytes > 0), self.loaded_bytes + self.spare_bytes
        return least if loaded >= self.full_bytes and self.experts < least else None  # adapters are always smaller


@dataclass(frozen=True, kw_only=True)
class ServiceInfo(ServedModel):
    """What is served, and what the web must know of it; constant once the model is loaded."""

    tasks: tuple[str, ...]  # V names, the order of every task mix and reward
    scales: dict[str, tuple[float, float]]  # task → scale of its grade: low + (high − low)·sigmoid(logit)
    loaded_parameters: int  # of the dense model that answers
    full_parameters: int  # of the un-merged experts
    agreement: float | None  # with fp32, measured on past texts; None in fp32
    margin: float = 0.0  # where the two best labels are no further apart, fp32 answers again
    max_tokens: int  # most that `generate` writes for one prompt
    slot_requests: int | None
    slot_seconds: float | None
    backend: str = "torch"  # what runs it
    relays: bool = False  # whether requests go to an engine as they are …
    experts_by_name: bool = False  # … and whether each expert can be asked by its name


@dataclass(frozen=True)
class Why(Shown):
    """Why the served blend was chosen, by what the router believed then."""

    sentence: str
    mean: FloatOrNaN
    """Reward that it expected of the blend."""
    uncertainty: FloatOrNaN
    """How far off that may be."""
    bound: FloatOrNaN
    """The most that the blend seemed able to earn: mean, uncertainty and granularity."""


@dataclass(frozen=True)
class Alarm(Shown):
    """Something an operator should know."""

    time: float
    """Seconds since 1970."""
    slot: int
    text: str


@dataclass(frozen=True, eq=False)
class ModelView(Shown):
    """One of the models that answer side by side."""

    merge_version: int
    blend: Numbers  # (K,)
    tasks: tuple[str, ...]
    """That are sent to it."""
    expected: float
    """Share of the requests that these should be."""
    requests: int
    """That it has answered in this slot."""
    reward: FloatOrNaN
    """Mean of the rewards that came for it."""


@dataclass(frozen=True)
class Way(Shown):
    """One way to serve, and what it earned on rows that the history held back."""

    method: str
    """How blends are merged."""
    models: int
    """G."""
    groups: tuple[int, ...]  # (V,)
    """The model of each task."""
    rewards: tuple[float, ...]  # (V,)
    bytes: int
    """Of the models that answer, without the spare."""

    @property
    def reward(self) -> float:
        """Mean over the tasks."""
        return sum(self.rewards) / len(self.rewards)


@dataclass(frozen=True, kw_only=True)
class CheckView(Shown):
    """The self-check: what each way of serving earned."""

    tasks: tuple[str, ...]
    rows: int
    alone: tuple[float, ...]  # (V,)
    """Each task by its own expert, told the task."""
    alone_bytes: int
    base: tuple[float, ...]  # (V,)
    """Each task by the base alone, told the task; empty where the base is no expert."""
    ways: tuple[Way, ...]
    method: Annotated[str | None, Field(exclude=True)] = None  # that a state was begun with: its blends go on by it

    @computed_field  # type: ignore[prop-decorator]
    @property
    def taken(self) -> Way:
        """The smallest panel within a point of the best; of its ways the one that earned most."""
        ways = [way for way in self.ways if way.method == self.method] or self.ways
        best = max(way.reward for way in ways)
        return min((way for way in ways if way.reward >= best - NEAR), key=lambda way: (way.models, -way.reward))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def advice(self) -> str:
        """What to do where no way keeps nine tenths of that; empty where one does."""
        kept = self.taken.reward * len(self.alone) / max(sum(self.alone), 1e-9)
        if kept >= KEPT:
            return ""
        return (
            f"merged, these experts keep {kept:.0%} of what they earn alone: give --memory for more models, serve "
            "them as they are (--unmerged), or look at them with `tanbr inspect`"
        )


@dataclass(frozen=True)
class WorthView(Shown):
    """What each expert alone is worth to a task, by logged requests."""

    rows: int
    """Requests that every expert has answered alone."""
    logged: int
    """Requests of the task that the log holds now."""
    expert: int | None
    """The task's own expert, as found, by its place in a blend; null where nobody knows it yet."""
    rewards: tuple[float, ...] = ()  # (K,)
    """What each expert is expected to earn on the rows, by the chances it gives its answers; empty without rows."""
    errors: tuple[float, ...] = ()  # (K,)
    """Half of the interval around each (95%)."""


@dataclass(frozen=True)
class TriedView(Shown):
    """A blend that was tried on logged requests."""

    slot: int
    blend: tuple[float, ...]  # (K,)
    why: str
    rows: int
    gain: float
    """What it earned beyond the even blend on the same rows, a request."""
    error: float
    """Half of the interval around it (95%)."""


@dataclass(frozen=True)
class PracticeView(Shown):
    """What was found by trying blends on logged requests; it holds no text, and a restart keeps it."""

    exercises: int
    """Done so far."""
    tasks: tuple[WorthView, ...]  # (V,)
    tried: tuple[TriedView, ...]
    """Newest first."""


@dataclass(frozen=True, eq=False)
class GainView(Gain, Shown):
    """What learning is worth: slots that were held back beside those around them.

    Of `slots` with rewards, `held` were held back; `total` is the reward of a request beyond that of the start blend,
    `error` half of its interval (95%). `tasks` are null where a task was not seen in both kinds of slots.
    """

    tasks: NumbersOrNaN  # (V,)
    errors: NumbersOrNaN  # (V,)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """The same in words."""
        return str(self)


@dataclass(frozen=True, eq=False)
class ServiceState(Shown):
    """What the server does now. Vectors run over `tasks` or over the experts."""

    slot: int
    merge_version: int
    task_mix: Numbers  # (V,)
    """ψ: the share of each task that the slot's blend was chosen for."""
    blend: Numbers  # (K,)
    """x: the weight of each expert, as served."""
    reward: NumbersOrNaN  # (V,)
    """Per task, of the last slot whose reward is known; null where a task was not seen."""
    counts: Numbers  # (V,)
    """Requests behind each."""
    estimated_regret: FloatOrNaN
    """How far, by the router's own belief, the blend is below its best."""
    requests: int
    """Answered in this slot."""
    answered: int
    """Since the process started."""
    queue: int
    """Texts that wait."""
    phase: Phase
    """Who chooses the blend."""
    why: Why | None
    """Null if the router did not choose the blend."""
    pinned: bool
    shares: dict[str, float]
    """Share of each source in the last known rewards."""
    alarms: tuple[Alarm, ...]
    """Newest first."""
    last_merge_seconds: FloatOrNaN
    last_pause_seconds: FloatOrNaN
    """How long low_memory's merge kept requests waiting; otherwise the swap itself."""
    uptime: float
    models: tuple[ModelView, ...] = ()
    """Those that answer; `merge_version` and `blend` are the first one's."""
    check: CheckView | None = None
    """Null where nothing was measured at start."""
    gain: GainView | None = None
    """Null until two slots were held back, and two others had rewards."""
    practice: PracticeView | None = None
    """Null where nothing is practised."""


@dataclass(frozen=True, eq=False)
class SlotView(SlotRecord, Shown):
    """A slot as the store remembers it."""

    task_mix: Numbers  # (V,)
    blend: Numbers  # (K,) the mean over the requests, of a panel
    reward: NumbersOrNaN  # (V,)
    counts: Numbers  # (V,)
    started: float
    """Seconds since 1970."""
    ended: float | None
    """Null while it is open."""
    requests: int
    told: bool
    """Whether the router has learned from it."""
    unknown: FloatOrNaN
    """Share of requests unlike any task."""
    estimate: Numbers | None  # (V,)
    """The mix that was seen, once the slot has ended."""
    estimated_regret: FloatOrNaN
    """How far the router then believed the blend to be below its best; null if the choice was not its own."""
    reason: Reason
    """Why the slot serves its blend."""
    note: str
    """More about that, in words."""
    chance: float | None = None
    """That it would be held back; null if no coin was tossed."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mean_reward(self) -> FloatOrNaN:
        """Mean reward of the requests that have one."""
        return self.total_reward


@dataclass(frozen=True, eq=False)
class VersionView(Shown):
    """A merge version that can be rolled back to."""

    merge_version: int
    blend: Numbers  # (K,)
    created: float
    """Seconds since 1970."""
    good: bool
    """False once the guard has refused it."""
    instant: bool
    """Whether it is still in memory: rolling back to it merges nothing."""
    requests: int
    reward: FloatOrNaN
    """Mean over its requests that have a reward."""


@dataclass(frozen=True)
class ClientView(Shown):
    """A client that gave feedback."""

    client: str
    """The name of its token, or an opaque key."""
    trust: float
    """What its word counts, from 0 to 1."""
    leads: bool
    """Whether it gave over half of what counted in most slots lately."""


class Observer:
    """Hears what happens, from the service's own threads; what overrides this must be quick and must not raise."""

    def batch(self, size: int, seconds: float) -> None: ...  # a batch was answered, so long after its forming
    def queue(self, depth: int) -> None: ...  # so many texts wait
    def merged(self, seconds: float, version: int) -> None: ...  # a merge took so long, and is served from now on
    def turned(self, parts: Mapping[str, tuple[float, float]]) -> None: ...  # a turn: seconds by clock and processor
    def slot(self, record: SlotRecord) -> None: ...  # its reward was told to the router
    def feedback(self, outcome: Outcome | Literal["refused"], count: int) -> None: ...  # refused: it could not be kept
    def conversation(self, outcome: Literal["begun", "kept", "moved"]) -> None: ...  # moved: its version is gone
    def practised(self, rows: int, seconds: float) -> None: ...  # a blend was tried, in so many seconds of one core
    def alarm(self, text: str) -> None: ...  # something went wrong, or drifts
