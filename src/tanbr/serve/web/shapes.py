"""What clients send and get. How many and how long depends on the settings: the routes check that."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError


class Sent(BaseModel):
    """A body: no value is converted, and a key that is not known is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True, frozen=True)


class Given(BaseModel):
    """An answer, for the document: routes write it straight from what the service gives."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def _one_or_list(value: Any) -> str | None:
    return ":one" if isinstance(value, str) else ":list" if isinstance(value, list) else None


Version = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2)]
Input = Annotated[
    Annotated[Text, Tag(":one")] | Annotated[Pair, Tag(":list")],
    Discriminator(
        _one_or_list, custom_error_type="input", custom_error_message="must be a text, or a pair of texts in a list"
    ),
]
Prompt = Annotated[
    Annotated[Text, Tag(":one")] | Annotated[list[Text], Field(min_length=1), Tag(":list")],
    Discriminator(_one_or_list, custom_error_type="prompt", custom_error_message="must be a text, or texts in a list"),
]


class ClassifyRequest(Sent):
    """Texts, or pairs of texts, to classify."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": ["a fine film", ["a question", "a passage that may answer it"]]}]}
    )
    inputs: Annotated[list[Input], Field(min_length=1)]
    """Each a text, or a pair of texts."""
    labels: Annotated[list[str], Field(min_length=1)] | None = None
    """The only labels to choose from; all if not given."""


class Classified(Given):
    """The answer to one input."""

    request_id: str
    """What feedback on this answer must name."""
    label: str
    """The most probable of the labels."""
    score: float
    """Its probability."""
    scores: dict[str, float]
    """Probability of each label; they sum to 1 over the labels asked for."""
    grades: dict[str, float] | None = None
    """For every graded task of the model, the grade that this input would get, on the task's scale."""


class ClassifyResponse(Given):
    """Answers in the order of the inputs, all by one merge version."""

    outputs: list[Classified]
    merge_version: int


def _reward_or_label(value: Any) -> str | None:
    return None if not isinstance(value, dict) else ":label" if "label" in value else ":reward"


class RewardFeedback(Sent):
    """How good an answer was."""

    request_id: str
    reward: Annotated[float, Field(ge=0, le=1)]
    """From 0, useless, to 1, right."""
    task: str | None = None
    """Which task it was, if that is known; else the monitor's belief shares the reward out."""


class LabelFeedback(Sent):
    """What the right answer was; the server scores its own by the task's rule."""

    request_id: str
    task: str
    label: str | Annotated[float, Field(allow_inf_nan=False)]
    """The true label, or the grade on the task's scale."""


class FeedbackRequest(Sent):
    """Feedback on answers. The first for an answer counts; sending it again changes nothing."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"feedback": [{"request_id": "0f3a-1", "reward": 1.0}]}]})
    feedback: Annotated[
        list[
            Annotated[
                Annotated[RewardFeedback, Tag(":reward")] | Annotated[LabelFeedback, Tag(":label")],
                Discriminator(
                    _reward_or_label,
                    custom_error_type="feedback",
                    custom_error_message="must be an object with a request_id, and a reward or a task and label",
                ),
            ]
        ],
        Field(min_length=1),
    ]


class FeedbackResponse(Given):
    """What became of it; whatever is accepted is on disk."""

    accepted: int
    repeated: int
    """There already; nothing changed."""
    unknown: int
    """Name no answer that this server gave, or one too old."""
    outcomes: list[Literal["accepted", "repeated", "unknown"]]
    """One for each, in order."""


def _off(value: bool) -> bool:
    if value:
        raise PydanticCustomError("off", "must be false: this server does not do it")
    return value


class StreamOptions(Sent):
    """What a stream holds beside the text."""

    include_usage: bool = False
    """Whether a last piece counts the tokens."""


class CompletionRequest(Sent):
    """What OpenAI's clients send. The model writes greedily, so what would make it choose otherwise is refused."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "…", "prompt": "translate: hello"}]})
    model: str
    """The id that /v1/models gives."""
    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens to write; more than the server allows is cut to that."""
    stream: bool | None = None
    """Whether to send each piece of text as it is made, as server-sent events."""
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=0)] | None = None
    """0: the most probable word each time."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Makes no difference to greedy writing."""
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    """One answer for a prompt."""
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    echo: Annotated[bool, AfterValidator(_off), Field(json_schema_extra={"const": False})] | None = None
    logprobs: None = None
    stop: None = None
    seed: int | None = None
    """Makes no difference to greedy writing."""
    user: str | None = None
    """Not kept."""


class Choice(Given):
    """What was written for one prompt."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None
    request_id: str
    """What feedback on this answer must name."""


class Usage(Given):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(Given):
    """OpenAI's completion, and the merge version that wrote it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    merge_version: int


class Model(Given):
    """The model that is served, as OpenAI lists one."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Given):
    """All of them: one."""

    object: Literal["list"]
    data: list[Model]


class AlarmShape(Given):
    """Something an operator should know."""

    time: float
    slot: int
    text: str


class ModelShape(Given):
    """What is served."""

    name: str
    family: str
    kind: Literal["classifier", "text"]
    experts: int
    sites: int
    labels: list[str]
    loaded_bytes: int
    full_bytes: int
    precision: str
    device: str


class StateResponse(Given):
    """What the server does now. Vectors run over `tasks` or over the experts."""

    slot: int
    merge_version: int
    tasks: list[str]
    task_mix: list[float]
    """ψ: the share of each task that the slot's blend was chosen for."""
    blend: list[float]
    """x: the weight of each expert, as served."""
    reward: list[float | None]
    """Per task, of the last slot whose reward is known; null where a task was not seen."""
    counts: list[float]
    """Requests behind each."""
    estimated_regret: float | None
    """How far, by the router's own belief, the blend is below its best."""
    requests: int
    """Answered in this slot."""
    answered: int
    """Since the process started."""
    queue: int
    pinned: bool
    shares: dict[str, float]
    """Share of each source in the last known rewards."""
    alarms: list[AlarmShape]
    last_merge_seconds: float | None
    last_pause_seconds: float | None
    uptime: float
    slot_requests: int | None
    slot_seconds: float | None
    model: ModelShape


class SlotShape(Given):
    """One slot."""

    slot: int
    merge_version: int
    task_mix: list[float]
    estimate: list[float] | None
    """The mix that was seen, once the slot has ended."""
    blend: list[float]
    reward: list[float | None]
    counts: list[float]
    mean_reward: float | None
    estimated_regret: float | None
    """How far the router then believed the blend to be below its best; null if the choice was not its own."""
    requests: int
    unknown: float | None
    """Share of requests unlike any task."""
    started: float
    ended: float | None
    told: bool
    """Whether the router has learned from it."""
    note: str
    """Why the blend is not the router's choice, if it is not."""


class SlotsResponse(Given):
    """Slots, newest first."""

    slots: list[SlotShape]


class VersionShape(Given):
    """A merge version that can be rolled back to."""

    merge_version: int
    blend: list[float]
    created: float
    good: bool
    instant: bool
    requests: int
    reward: float | None


class VersionsResponse(Given):
    """Versions, newest first."""

    versions: list[VersionShape]


class NodeShape(Given):
    """A node of the router's search tree."""

    parent: int
    depth: int
    blend: list[float]
    visits: float
    value: float | None
    """Predicted reward for the present task mix."""
    leaf: bool


class TreeResponse(Given):
    """The search tree, parents before children; empty for a router without one."""

    nodes: list[NodeShape]
    total: int
    """How many there are; the ones shown are the most visited."""


class WindowShape(Given):
    """Ten seconds of answers."""

    time: float
    requests: int
    p50_ms: float | None
    p99_ms: float | None


class LatencyResponse(Given):
    """Windows, oldest first; the last is still open."""

    windows: list[WindowShape]


def _blend_or_version(value: Any) -> str | None:
    return None if not isinstance(value, dict) else ":blend" if "blend" in value else ":version"


class PinBlend(Sent):
    """A blend to serve until `unpin`."""

    blend: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1)]
    """One weight for each expert; they sum to 1."""


class PinVersion(Sent):
    """A merge version to serve until `unpin`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"merge_version": 3}]})
    merge_version: Version


PinRequest = Annotated[
    Annotated[PinBlend, Tag(":blend")] | Annotated[PinVersion, Tag(":version")],
    Discriminator(
        _blend_or_version, custom_error_type="pin", custom_error_message="must be an object with blend or merge_version"
    ),
]


class RollbackRequest(Sent):
    """Where to go back to."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"merge_version": 3}]})
    merge_version: Version | None = None
    """The last good one before the present if not given."""


class AdminResponse(Given):
    """What is the case now."""

    slot: int
    merge_version: int
    pinned: bool


class Health(Given):
    """Whether the server lives, or is ready."""

    status: Literal["ok"]


class ErrorDetail(Given):
    """Why not."""

    message: str
    """One sentence."""
    type: str
    param: str | None
    """Which part of the request."""
    code: str


class ErrorResponse(Given):
    """A refusal, in the shape that OpenAI's clients read."""

    error: ErrorDetail
