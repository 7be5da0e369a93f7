"""OpenAI's client before the real server: sampling, several answers, strings that stop, on a T5 and a causal model."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest

from serve.text_model import write
from serve.web.live import live
from tanbr.moe import embedded
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig
from tanbr.serve.service import Service

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
PROMPTS = {"t5": "the plot is clever and the cast is lovely .", "mixtral": "w1 w2 w3"}


@dataclass
class Asked:
    """A server, and what is asked of it."""

    kind: str
    service: Service
    url: str
    ai: openai.OpenAI

    def __post_init__(self) -> None:
        self.model, self.prompt = self.service.info.model, PROMPTS[self.kind]

    def whole(self, prompt: Any = None, **said: Any) -> Any:
        prompt = self.prompt if prompt is None else prompt
        return self.ai.completions.create(model=self.model, prompt=prompt, **{"max_tokens": 8} | said)

    def streamed(self, prompt: Any = None, **said: Any) -> tuple[list[str], list[str | None], Any]:
        """Texts, how they ended, and the usage, put together from a stream's pieces."""
        count = said.get("n", 1) * (len(prompt) if isinstance(prompt, list) else 1)
        texts, ends, usage = [""] * count, [None] * count, None
        for chunk in self.whole(prompt, stream=True, stream_options={"include_usage": True}, **said):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                ends[choice.index] = choice.finish_reason or ends[choice.index]
        return texts, ends, usage


@pytest.fixture(scope="module", params=["t5", "mixtral"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    kind, folder = str(request.param), tmp_path_factory.mktemp("writing")
    if kind == "mixtral":
        made = write("mixtral", folder / "model", max_position_embeddings=256)
        (made / "chat_template.jinja").write_text(TEMPLATE)
    checkpoint = embedded.path("t5") if kind == "t5" else folder / "model"
    config = ServeConfig(slot_seconds=3600, workers=2, threads=1, max_tokens=100 if kind == "t5" else None)
    service = build(checkpoint, config=config, state=folder / "state", force=True)
    with live(service) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as ai:
        yield Asked(kind, service, url, ai)


def texts(done: Any) -> list[str]:
    return [choice.text for choice in done.choices]


def test_temperature_0_is_what_was_written_without_it(asked: Asked) -> None:
    plain = texts(asked.whole())
    assert texts(asked.whole(temperature=0, top_p=0.3, seed=5)) == plain
    assert texts(asked.whole(temperature=1.5, top_p=0)) == plain  # the smallest set of all: one word


def test_a_seed_repeats_an_answer_whatever_else_is_in_the_batch(asked: Asked) -> None:
    how = {"temperature": 2, "max_tokens": 12}
    seeds = range(8)
    alone = [texts(asked.whole(seed=seed, **how))[0] for seed in seeds]
    assert len(set(alone)) > 1
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(asked.whole, "w9 the weather", temperature=2, n=3, max_tokens=20) for _ in range(4)]
        again = [pool.submit(asked.whole, seed=seed, **how) for seed in seeds]
        assert [texts(one.result())[0] for one in again] == alone
        assert all(len(one.result().choices) == 3 for one in others)
    assert texts(asked.whole([asked.prompt, "w4 w5"], seed=2, **how))[0] == alone[2]  # nor do other prompts matter
    drawn = {texts(asked.whole(temperature=2, max_tokens=12))[0] for _ in range(8)}
    assert len(drawn) > 1  # without a seed it is another answer each time


def test_n_answers_are_one_request_each(asked: Asked) -> None:
    how = {"temperature": 1.4, "seed": 3, "max_tokens": 12}
    one, many = asked.whole(**how), asked.whole([asked.prompt, "w4 w5"], n=3, **how)
    assert [choice.index for choice in many.choices] == list(range(6))
    assert texts(many)[0] == texts(one)[0]
    names = [choice.request_id for choice in many.choices]
    assert len(set(names)) == 6
    sent = httpx2.post(
        f"{asked.url}/v1/feedback", json={"feedback": [{"request_id": name, "reward": 1} for name in names]}
    )
    assert sent.json()["accepted"] == 6
    both = asked.whole([asked.prompt, "w4 w5"], temperature=0)
    assert many.usage.prompt_tokens == both.usage.prompt_tokens
    assert many.usage.total_tokens == many.usage.prompt_tokens + many.usage.completion_tokens


@pytest.mark.parametrize("sampled", [False, True])
def test_an_answer_ends_before_the_first_string_that_stops_it(asked: Asked, sampled: bool) -> None:
    ways: list[dict[str, Any]] = [{"temperature": 1.4, "seed": seed} for seed in range(40)] if sampled else [{}]
    asking = ((how, asked.whole(max_tokens=12, **how)) for how in ways)
    how, whole = next((how, done) for how, done in asking if len(done.choices[0].text) > 4)
    text = whole.choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    expected = text[: text.index(stop)]
    for said in (stop, ["never there", stop, text + "!"]):
        cut = asked.whole(max_tokens=12, stop=said, **how)
        assert (cut.choices[0].text, cut.choices[0].finish_reason) == (expected, "stop")
        assert 1 <= cut.usage.completion_tokens <= whole.usage.completion_tokens
        pieces, ends, usage = asked.streamed(max_tokens=12, stop=said, **how)
        assert (pieces, ends, usage) == ([expected], ["stop"], cut.usage)
    there = asked.whole(max_tokens=12, stop=["never there"], **how).choices[0]
    assert (there.text, there.finish_reason) == (text, whole.choices[0].finish_reason)
    given = {"feedback": [{"request_id": cut.choices[0].request_id, "reward": 0.5}]}
    assert httpx2.post(f"{asked.url}/v1/feedback", json=given).json()["accepted"] == 1


def test_a_conversation_is_written_in_the_same_way(asked: Asked) -> None:
    messages: list[Any] = [{"role": "user", "content": asked.prompt}]
    how: dict[str, Any] = {"temperature": 1.4, "seed": 6, "n": 2, "max_completion_tokens": 6}
    if asked.kind == "t5":
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            asked.ai.chat.completions.create(model=asked.model, messages=messages, **how)
        return
    done = asked.ai.chat.completions.create(model=asked.model, messages=messages, **how)
    said = [choice.message.content for choice in done.choices]
    assert said == texts(asked.whole(asked.prompt + " ", temperature=1.4, seed=6, n=2, max_tokens=6))
    parts: list[Any] = [{"role": "developer", "content": [{"type": "text", "text": asked.prompt}]}]
    again = asked.ai.chat.completions.create(model=asked.model, messages=parts, **how)
    assert [choice.message.content for choice in again.choices] == said
    with pytest.raises(openai.BadRequestError, match="does not support the parameter tools"):
        asked.ai.chat.completions.create(
            model=asked.model, messages=messages, tools=[{"type": "function", "function": {"name": "f"}}]
        )
