from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import openai
import pytest

from serve.web.fake import LONGEST, FakeService
from serve.web.live import BOTH, TOKEN, client, live, refusal, wait_for
from tanbr.serve.sampling import Manner


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService("text")


@pytest.fixture(scope="module")
def url(service: FakeService) -> Iterator[str]:
    with live(service, tokens=BOTH, inputs=3, text_chars=50, answer_seconds=0.3) as address:
        yield address


@pytest.fixture(scope="module")
def ai(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as made:
        yield made


def test_openais_client_completes(ai: openai.OpenAI) -> None:
    model = ai.models.list().data[0].id
    assert ai.models.retrieve(model).id == model == "fake"
    done = ai.completions.create(model=model, prompt=["say it", "twice or more"], max_tokens=2, temperature=0)
    texts = [(choice.text, choice.finish_reason) for choice in done.choices]
    assert texts == [("SAY IT", "length"), ("TWICE OR", "length")]
    assert done.object == "text_completion"
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.model_extra is not None
    assert done.model_extra["merge_version"] == 3
    names = [(choice.model_extra or {})["request_id"] for choice in done.choices]
    assert len(set(names)) == 2
    sent = httpx2.post(
        f"{ai.base_url}feedback",
        json={"feedback": [{"request_id": name, "reward": 1} for name in names]},
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    assert sent.json()["accepted"] == 2


def test_openais_client_streams(ai: openai.OpenAI) -> None:
    stream = ai.completions.create(
        model="fake", prompt=["one by one", "two"], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["ONE BY ONE", "TWO"]
    assert [choice.finish_reason for chunk in chunks[-3:-1] for choice in chunk.choices] == ["stop", "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert len({chunk.id for chunk in chunks}) == 1


def test_openais_client_chats(ai: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say it"}]
    done = ai.chat.completions.create(model="fake", messages=messages, max_completion_tokens=3)
    (choice,) = done.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "BE BRIEF SAY")
    assert choice.finish_reason == "length"
    assert done.object == "chat.completion"
    assert done.usage is not None
    assert done.usage.completion_tokens == 3
    assert (choice.model_extra or {})["request_id"]
    chunks = list(ai.chat.completions.create(model="fake", messages=messages, stream=True))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "BE BRIEF SAY IT"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    with ai.chat.completions.stream(model="fake", messages=messages) as stream:  # OpenAI's own way to join pieces
        whole = stream.get_final_completion().choices[0].message
    assert (whole.role, whole.content) == ("assistant", "BE BRIEF SAY IT")


def test_what_is_said_of_the_writing_reaches_the_service(ai: openai.OpenAI, service: FakeService) -> None:
    done = ai.completions.create(
        model="fake", prompt="say it", temperature=0.7, top_p=0.5, seed=-3, n=2, stop=["\n", "END"], max_tokens=1
    )
    assert service.manner == Manner(temperature=0.7, top_p=0.5, seed=-3, n=2, stop=("\n", "END"))
    assert [(choice.index, choice.text) for choice in done.choices] == [(0, "SAY"), (1, "SAY")]
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (1, 2)  # a prompt counts once
    ai.completions.create(model="fake", prompt="say it", stop="END")
    assert service.manner == Manner(stop=("END",))
    ai.completions.create(model="fake", prompt="say it", temperature=None, top_p=None, n=None, stop=None, seed=None)
    assert service.manner == Manner()
    messages: list[Any] = [{"role": "user", "content": "say it"}]
    chunks = list(
        ai.chat.completions.create(
            model="fake", messages=messages, n=2, temperature=2, stream=True, stream_options={"include_usage": True}
        )
    )
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["SAY IT", "SAY IT"]
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (2, 4)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


@pytest.mark.parametrize(
    ("said", "status", "sentence"),
    [
        ({"n": 4, "temperature": 1}, 422, "n must be at most 3, for 3 answers (got 4)"),
        ({"n": 0}, 422, "n must be greater than or equal to 1"),
        ({"temperature": -1}, 422, "temperature must be greater than or equal to 0"),
        ({"top_p": 1.1}, 422, "top_p must be less than or equal to 1"),
        ({"seed": 1.5}, 422, "seed must be a valid integer"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 422, "stop must have at most 4 items, not 5"),
        ({"stop": ["a", ""]}, 422, "stop[1] must have at least 1 character"),
        ({"stop": "x" * 257}, 422, "stop must have at most 256 characters"),
        ({"stop": 5}, 422, "stop must be a text, or texts in a list"),
    ],
)
def test_a_completion_with_a_wrong_value_is_refused(url: str, said: Any, status: int, sentence: str) -> None:
    with client(url, TOKEN) as http:
        answer = http.post("/v1/completions", json={"model": "fake", "prompt": "a"} | said)
    assert (answer.status_code, refusal(answer)) == (status, sentence)


@pytest.mark.parametrize(
    "said",
    [
        {"logprobs": 2}, {"echo": True}, {"best_of": 3}, {"suffix": "a"}, {"logit_bias": {"5": 1}},
        {"presence_penalty": 0.5}, {"frequency_penalty": -1},
    ],
)  # fmt: skip
def test_a_completion_that_is_not_done_is_refused(url: str, said: Any) -> None:
    (name,) = said
    with client(url, TOKEN) as http:
        answer = http.post("/v1/completions", json={"model": "fake", "prompt": "a"} | said)
    assert (answer.status_code, refusal(answer)) == (400, f"{name} is not done by this server; leave it out")
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("unsupported_parameter", name)


@pytest.mark.parametrize(
    "said",
    [
        {"logprobs": True}, {"top_logprobs": 3}, {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"}, {"functions": [{"name": "f"}]}, {"function_call": {"name": "f"}},
        {"response_format": {"type": "json_object"}}, {"modalities": ["audio"]}, {"audio": {"voice": "a"}},
        {"prediction": {"type": "content"}}, {"reasoning_effort": "low"}, {"verbosity": "low"},
        {"web_search_options": {}}, {"store": True},
    ],
)  # fmt: skip
def test_a_chat_that_is_not_done_is_refused(url: str, said: Any) -> None:
    (name,) = said
    body = {"model": "fake", "messages": [{"role": "user", "content": "a"}]}
    with client(url, TOKEN) as http:
        answer = http.post("/v1/chat/completions", json=body | said)
        assert (answer.status_code, refusal(answer)) == (400, f"{name} is not done by this server; leave it out")
        assert http.post("/v1/chat/completions", json=body | {name: None}).status_code == 200


def test_what_changes_nothing_is_taken(url: str) -> None:
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_p": 0, "user": "somebody"}
    chat = {"logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": False}
    with client(url, TOKEN) as http:
        body = {"model": "fake", "prompt": "a", "best_of": 1, "echo": False} | neutral
        assert http.post("/v1/completions", json=body).status_code == 200
        body = {"model": "fake", "messages": [{"role": "user", "content": "a"}]} | neutral | chat
        assert http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("messages", "status", "says"),
    [
        ([], 422, "messages"),
        ([{"role": "judge", "content": "a"}], 422, "role"),
        ([{"role": "user", "content": ["a"]}], 422, "content"),
        ([{"role": "assistant", "content": "a"}], 400, "chat template refuses"),
        ([{"role": "user", "content": "a" * 51}], 422, "at most 50 characters"),
    ],
)
def test_a_conversation_that_is_none_is_refused(ai: openai.OpenAI, messages: Any, status: int, says: str) -> None:
    with pytest.raises(openai.APIStatusError, match=says) as refused:
        ai.chat.completions.create(model="fake", messages=messages)
    assert refused.value.status_code == status


def test_openais_client_understands_refusals(ai: openai.OpenAI, url: str, service: FakeService) -> None:
    with pytest.raises(openai.NotFoundError, match="the model here is 'fake'") as missing:
        ai.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.UnprocessableEntityError, match="temperature must be less than or equal to 2"):
        ai.completions.create(model="fake", prompt="a", temperature=2.5)
    with pytest.raises(openai.UnprocessableEntityError, match=r"prompt\[0\] must be a valid string"):
        ai.completions.create(model="fake", prompt=[1, 2])
    with pytest.raises(openai.UnprocessableEntityError, match="at most 3 texts"):
        ai.completions.create(model="fake", prompt=["a"] * 4)
    with pytest.raises(openai.UnprocessableEntityError, match="at most 50 characters"):
        ai.completions.create(model="fake", prompt="a" * 51)
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError, match="send a token"),
    ):
        stranger.completions.create(model="fake", prompt="a")
    with pytest.raises(openai.APIError, match="something is wrong with the server"):
        list(ai.completions.create(model="fake", prompt="break", stream=True))
    service.stuck = True
    try:
        with pytest.raises(openai.APIError, match="no answer within"):
            list(ai.completions.create(model="fake", prompt="a", stream=True))
        with pytest.raises(openai.InternalServerError, match="no answer within"):
            ai.completions.create(model="fake", prompt="a")
    finally:
        service.stuck = False


def test_a_model_that_writes_does_not_classify(url: str) -> None:
    with client(url, TOKEN) as http:
        answer = http.post("/v1/classify", json={"inputs": ["a"]})
        assert (answer.status_code, refusal(answer)) == (404, "the model here writes: use /v1/completions")


def test_more_tokens_than_allowed_are_refused(ai: openai.OpenAI, service: FakeService) -> None:
    before = len(service.calls)
    with pytest.raises(openai.BadRequestError, match=r"max_tokens must be at most 16 \(got 10000\)"):
        ai.completions.create(model="fake", prompt="a", max_tokens=10_000)
    assert len(service.calls) == before


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_model_reads_is_refused(ai: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=f"a prompt must have at most {LONGEST} tokens") as refused:
        ai.completions.create(model="fake", prompt="a " * (LONGEST + 1), stream=stream)
    assert refused.value.code == "context_length_exceeded"


def test_a_client_that_leaves_a_stream_cancels_it() -> None:
    service = FakeService("text")
    with live(service, answer_seconds=60) as url, client(url) as http:
        body = {"model": "fake", "prompt": "go on and on", "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # dropped, it would hang up
            assert next(lines).startswith("data: ")
            assert not service.futures[-1].cancelled()
        wait_for(service.futures[-1].cancelled)
        service.stuck = True  # from here on there is not even a first piece
        with suppress(httpx2.ReadTimeout), http.stream("POST", "/v1/completions", json=body, timeout=0.2):
            pass
        wait_for(service.futures[-1].cancelled)
