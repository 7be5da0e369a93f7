"""What clients send, and what they get from the routes that answer them (the state is in `serve/records.py`).

How many and how long depends on the settings: the routes check that. Every list stops at its first wrong item
(`fail_fast`): half a million mistakes are not worth listing. Routes write answers straight from what the service gives;
the models of answers are for the OpenAPI document.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from tanbr.serve.sampling import HOTTEST, MOST_STOPS


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


Stop = Annotated[str, Field(min_length=1, max_length=256)]  # a stream may have to hold back as many characters
Stops = Annotated[
    Annotated[Stop, Tag(":one")] | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True), Tag(":list")],
    Discriminator(_one_or_list, custom_error_type="stop", custom_error_message="must be a text, or texts in a list"),
]


def _not_done(*neutral: Any) -> Any:
    """Make a setting of OpenAI's that is not done here: only what changes nothing is taken."""
    return Field(default=None, json_schema_extra={"enum": [None, *neutral]})


class StreamOptions(Sent):
    """What a stream holds beside the text."""

    include_usage: bool = False
    """Whether a last piece counts the tokens."""


class Writable(Sent):
    """What OpenAI's clients say of any answer; what is not done here is refused, unless it changes nothing."""

    model: str
    """The id that /v1/models gives."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens to write; more than the server allows is refused."""
    stream: bool | None = None
    """Whether to send each piece of text as it is made, as server-sent events."""
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=HOTTEST)] | None = None
    """What the logits are divided by before a word is drawn; 0, or not given: the most probable word each time."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Draw from the smallest set of words with so much of the probability; no difference at temperature 0."""
    n: Annotated[int, Field(ge=1)] | None = None
    """Answers to each prompt; at temperature 0 all the same."""
    stop: Stops | None = None
    """An answer ends before the first of these strings, which is no part of it."""
    seed: int | None = None
    """The same seed, prompt and merge version give the same answer; no difference at temperature 0."""
    frequency_penalty: Any = _not_done(0)
    presence_penalty: Any = _not_done(0)
    logit_bias: Any = _not_done({})
    user: str | None = None
    """Not kept."""
    task: str | None = None
    """The task that the prompts belong to, if the client knows; an extension of ours."""

    @field_validator("*", mode="before")
    @classmethod
    def _changes_nothing(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what is not done here."""
        about = cls.model_fields[str(info.field_name)].json_schema_extra
        if isinstance(about, dict) and "enum" in about:
            neutral: Any = about["enum"]
            if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
                raise PydanticCustomError("not_done", "is not done by this server; leave it out")
        return value


class CompletionRequest(Writable):
    """Prompts to go on from, or to answer."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "…", "prompt": "translate: hello"}]})
    prompt: Prompt
    best_of: Any = _not_done(1)
    echo: Any = _not_done(False)
    logprobs: Any = _not_done()
    suffix: Any = _not_done("")


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
    logprobs: Any = _not_done(False)
    top_logprobs: Any = _not_done(0)
    response_format: Any = _not_done({"type": "text"})
    tools: Any = _not_done([])
    tool_choice: Any = _not_done("none", "auto")
    parallel_tool_calls: Any = _not_done(True, False)
    functions: Any = _not_done([])
    function_call: Any = _not_done("none", "auto")
    modalities: Any = _not_done(["text"])
    audio: Any = _not_done()
    prediction: Any = _not_done()
    reasoning_effort: Any = _not_done()
    verbosity: Any = _not_done()
    web_search_options: Any = _not_done()
    store: Any = _not_done(False)


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


class Given(BaseModel):
    """An answer."""

    model_config = ConfigDict(use_attribute_docstrings=True)


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
    tokens_cut: int
    """How many tokens of the input were left out because it is longer than the model reads."""
    grades: dict[str, float] | None = None
    """For every graded task of the model, the grade that this input would get, on the task's scale."""
    merge_version: int | None = None
    """What answered it, where several models answer side by side."""


class ClassifyResponse(Given):
    """Answers in the order of the inputs."""

    outputs: list[Classified]
    merge_version: int
    """What answered the first."""


class Written(Given):
    """What both kinds of choices have."""

    index: int
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None
    request_id: str
    """What feedback on this answer must name."""


class Choice(Written):
    """What was written for one prompt."""

    text: str


class Usage(Given):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completed(Given):
    """What both kinds of completions have."""

    id: str
    created: int
    model: str
    usage: Usage
    merge_version: int


class CompletionResponse(Completed):
    """OpenAI's completion, and the merge version that wrote it."""

    object: Literal["text_completion"]
    choices: list[Choice]


class ChatAnswer(Given):
    """What the model said."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Written):
    """The next message."""

    message: ChatAnswer


class ChatResponse(Completed):
    """OpenAI's chat completion, and the merge version that wrote it."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


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


class AdminResponse(Given):
    """The state after the change: what is served, and whether it is pinned."""

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
