"""What clients send. How many and how long depends on the settings: the routes check that.

Every list stops at its first wrong item (`fail_fast`): half a million mistakes are not worth listing.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError


class Sent(BaseModel):
    """A body: no value is converted, and a key that is not known is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True, frozen=True)


def _one_or_list(value: Any) -> str | None:
    return ":one" if isinstance(value, str) else ":list" if isinstance(value, list) else None


Version = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2, fail_fast=True)]
Input = Annotated[
    Annotated[Text, Tag(":one")] | Annotated[Pair, Tag(":list")],
    Discriminator(
        _one_or_list, custom_error_type="input", custom_error_message="must be a text, or a pair of texts in a list"
    ),
]
Prompt = Annotated[
    Annotated[Text, Tag(":one")] | Annotated[list[Text], Field(min_length=1, fail_fast=True), Tag(":list")],
    Discriminator(_one_or_list, custom_error_type="prompt", custom_error_message="must be a text, or texts in a list"),
]


class ClassifyRequest(Sent):
    """Texts, or pairs of texts, to classify."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": ["the plot is clever", ["a question", "a passage that may answer it"]]}]
        }
    )
    inputs: Annotated[list[Input], Field(min_length=1, fail_fast=True)]
    """Each a text, or a pair of texts."""
    labels: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    """The only labels to choose from; all if not given."""
    task: str | None = None
    """The task that the inputs belong to, if the client knows; nobody has to say."""


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
        Field(min_length=1, fail_fast=True),
    ]


def _off(value: bool) -> bool:
    if value:
        raise PydanticCustomError("off", "must be false: this server does not do it")
    return value


class StreamOptions(Sent):
    """What a stream holds beside the text."""

    include_usage: bool = False
    """Whether a last piece counts the tokens."""


class Writable(Sent):
    """What OpenAI's clients say of any answer. The model writes greedily; what would make it choose is refused."""

    model: str
    """The id that /v1/models gives."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens to write; more than the server allows is refused."""
    stream: bool | None = None
    """Whether to send each piece of text as it is made, as server-sent events."""
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=0)] | None = None
    """0: the most probable word each time."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Makes no difference to greedy writing."""
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    """One answer for a prompt."""
    stop: None = None
    seed: int | None = None
    """Makes no difference to greedy writing."""
    user: str | None = None
    """Not kept."""
    task: str | None = None
    """The task that the prompts belong to, if the client knows; an extension of ours."""


class CompletionRequest(Writable):
    """Prompts to go on from, or to answer."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "…", "prompt": "translate: hello"}]})
    prompt: Prompt
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    echo: Annotated[bool, AfterValidator(_off), Field(json_schema_extra={"const": False})] | None = None
    logprobs: None = None


class ChatMessage(Sent):
    """What somebody said."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(Writable):
    """A conversation to go on with."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "…", "messages": [{"role": "user", "content": "hello"}]}]}
    )
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """The newer name of max_tokens."""


def _blend_or_version(value: Any) -> str | None:
    return None if not isinstance(value, dict) else ":blend" if "blend" in value else ":version"


class PinBlend(Sent):
    """A blend to serve until `unpin`."""

    blend: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, fail_fast=True)]
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
