"""What clients get from the routes that answer, for the OpenAPI document: `views.py` writes the answers themselves."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Given(BaseModel):
    """An answer, for the document: routes write it straight from what the service gives."""

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


class FeedbackResponse(Given):
    """What became of it; whatever is accepted is on disk."""

    accepted: int
    repeated: int
    """There already; nothing changed."""
    unknown: int
    """Name no answer that this server gave, or one too old."""
    outcomes: list[Literal["accepted", "repeated", "unknown"]]
    """One for each, in order."""


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


class ChatAnswer(Given):
    """What the model said."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Given):
    """The next message."""

    index: int
    message: ChatAnswer
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None
    request_id: str
    """What feedback on this answer must name."""


class ChatResponse(Given):
    """OpenAI's chat completion, and the merge version that wrote it."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
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
