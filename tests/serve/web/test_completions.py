from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import openai
import pytest

from serve.web.fake import LONGEST, FakeService
from serve.web.live import BOTH, TOKEN, client, live, refusal, wait_for
from tanbr.serve.sampling import WritingOptions
from tanbr.serve.web.completions import NEUTRAL, NOT_KEPT
from tanbr.serve.web.refusals import allows

COMPLETION = ("/v1/completions", {"model": "fake", "prompt": "a"})
CHAT = ("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "a"}]})
MESSAGES: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say it"}]


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService("text")


@pytest.fixture(scope="module")
def url(service: FakeService) -> Iterator[str]:
    with live(service, tokens=BOTH, inputs=3, text_chars=50, answer_seconds=0.3) as address:
        yield address


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx2.Client]:
    with client(url, TOKEN) as made:
        yield made


@pytest.fixture(scope="module")
def ai(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as made:
        yield made


def test_openais_client_chats(ai: openai.OpenAI) -> None:
    done = ai.chat.completions.create(model="fake", messages=MESSAGES, max_completion_tokens=3)
    (choice,) = done.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "BE BRIEF SAY")
    assert (done.object, choice.finish_reason) == ("chat.completion", "length")
    assert done.usage is not None
    assert done.usage.completion_tokens == 3
    assert (choice.model_extra or {})["request_id"]
    chunks = list(ai.chat.completions.create(model="fake", messages=MESSAGES, stream=True))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "BE BRIEF SAY IT"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    with ai.chat.completions.stream(model="fake", messages=MESSAGES) as stream:  # OpenAI's own way to join pieces
        whole = stream.get_final_completion().choices[0].message
    assert (whole.role, whole.content) == ("assistant", "BE BRIEF SAY IT")


def test_what_is_said_of_the_writing_reaches_the_service(ai: openai.OpenAI, service: FakeService) -> None:
    done = ai.completions.create(
        model="fake", prompt="say it", temperature=0.7, top_p=0.5, seed=-3, n=2, stop=["\n", "END"], max_tokens=1
    )
    assert service.options == WritingOptions(temperature=0.7, top_p=0.5, seed=-3, n=2, stop=("\n", "END"))
    assert [(choice.index, choice.text) for choice in done.choices] == [(0, "SAY"), (1, "SAY")]
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (1, 2)  # a prompt counts once
    ai.completions.create(model="fake", prompt="say it", stop="END")
    assert service.options == WritingOptions(stop=("END",))
    ai.completions.create(model="fake", prompt="say it", temperature=None, top_p=None, n=None, stop=None, seed=None)
    assert service.options == WritingOptions()
    chunks = list(
        ai.chat.completions.create(
            model="fake", messages=MESSAGES, n=2, temperature=2, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (4, 8)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"n": 2, "prompt": ["a", "b"]}, f"4 answers are too many; 3 are allowed{allows('inputs')}"),
        ({"n": 4}, f"n must be less than or equal to 3{allows('inputs')}"),
        ({"max_tokens": 17}, "max_tokens must be 1..16 (got 17); the server's [serve] max_tokens allows more"),
        ({"temperature": 2.5}, "temperature must be less than or equal to 2"),
        ({"seed": 1.5}, "seed must be a valid integer"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop must have at most 4 items, not 5"),
        ({"stop": "x" * 257}, "stop[0] must have at most 256 characters"),
        ({"prompt": [1, 2]}, "prompt[0] must be a valid string"),
        ({"prompt": ["a"] * 4}, f"prompt must have at most 3 items, not 4{allows('inputs')}"),
    ],
)
def test_a_completion_with_a_wrong_value_is_refused(
    http: httpx2.Client, service: FakeService, said: Any, sentence: str
) -> None:
    before = len(service.calls)
    answer = http.post(COMPLETION[0], json=COMPLETION[1] | said)
    assert (answer.status_code, refusal(answer)) == (422, sentence)
    assert len(service.calls) == before


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
def test_what_is_not_done_is_refused_unless_it_changes_nothing(
    http: httpx2.Client, path: str, body: dict[str, Any]
) -> None:
    for name, value in {"logprobs": True, "tools": [{"name": "f"}], "response_format": {"type": "json_object"}}.items():
        answer = http.post(path, json=body | {name: value})
        says = f"this server does not support the parameter {name}; leave it out of the request"
        assert (answer.status_code, refusal(answer)) == (400, says)
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", name)
    neutral = {"frequency_penalty": 0.0, "tools": [], "echo": False, "suffix": "", "audio": None, "top_p": 0}
    neutral |= {name: values[0] for name, values in NEUTRAL.items()} | dict.fromkeys(NOT_KEPT, "anything")
    assert http.post(path, json=body | neutral).status_code == 200


def test_openais_messages_reach_the_template_as_texts(ai: openai.OpenAI, service: FakeService) -> None:
    said: list[Any] = [
        {"role": "developer", "content": [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}]},
        {"role": "user", "name": "ann", "content": "1 + 1"},
    ]
    done = ai.chat.completions.create(model="fake", messages=said).choices[0].message
    assert done.content == "BE BRIEF BE KIND 1 + 1"
    first, second = service.calls[-2][1]
    assert first == {"role": "developer", "content": "be brief\nbe kind"}
    assert second == {"role": "user", "content": "1 + 1"}
    again = ai.chat.completions.create(model="fake", messages=[done])  # an answer goes back as it came
    assert again.choices[0].message.content == done.content


@pytest.mark.parametrize(
    ("messages", "status", "says"),
    [
        ([{"role": "user", "content": ["a"]}], 422, r"messages\[0\].content\[0\] must be an object"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}], 422, "type must be 'text'"),
        ([{"role": "assistant"}], 422, r"messages\[0\].content is missing"),
        ([{"role": "assistant", "content": "refuse"}], 400, "chat template refuses"),
        ([{"role": "user", "content": "a" * 51}], 422, "at most 50 characters; the server's .http. text_chars"),
    ],
)
def test_a_conversation_that_is_none_is_refused(ai: openai.OpenAI, messages: Any, status: int, says: str) -> None:
    with pytest.raises(openai.APIStatusError, match=says) as refused:
        ai.chat.completions.create(model="fake", messages=messages)
    assert refused.value.status_code == status


def test_openais_client_understands_refusals(
    ai: openai.OpenAI, url: str, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(openai.NotFoundError, match="the model here is 'fake'") as missing:
        ai.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found"
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError, match="send a token"),
    ):
        stranger.completions.create(model="fake", prompt="a")
    with pytest.raises(openai.APIError, match="something is wrong with the server"):
        list(ai.completions.create(model="fake", prompt="break", stream=True))
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=f"a prompt must have at most {LONGEST} tokens") as refused:
            ai.completions.create(model="fake", prompt="a " * (LONGEST + 1), stream=stream)
        assert refused.value.code == "context_length_exceeded"
    monkeypatch.setattr(service, "stuck", True)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="no answer within"):
            ai.completions.create(model="fake", prompt="a", stream=stream)


def test_a_client_that_leaves_a_stream_cancels_it() -> None:
    service = FakeService("text")
    with live(service, answer_seconds=60) as url, client(url) as http:
        body = {"model": "fake", "prompt": "go on and on", "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # dropped, it would hang up
            assert next(lines).startswith("data: ")
            assert not service.futures[-1].cancelled()
        wait_for(service.futures[-1].cancelled)
        wait_for(lambda: '"/v1/completions",status="499"' in http.get("/metrics").text)  # though a 200 had begun
        service.stuck = True  # from here on there is not even a first piece
        with suppress(httpx2.ReadTimeout), http.stream("POST", "/v1/completions", json=body, timeout=0.2):
            pass
        wait_for(service.futures[-1].cancelled)
