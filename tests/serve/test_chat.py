"""A conversation becomes a prompt in a process of its own, whatever the template does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from serve.text_model import write
from tanbr.errors import CheckpointError, InputError
from tanbr.moe.text import TextEncoder
from tanbr.serve.chat import ChatTemplate

TEMPLATE = "{{ bos_token }} {% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ASKED = [{"role": "w1", "content": "w2 w3"}]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return TextEncoder.of(write("mixtral", tmp_path / "model"), vocab_size=64).tokenizer


@contextmanager
def made(tokenizer: Any, template: str | None) -> Iterator[ChatTemplate]:
    tokenizer.chat_template = template
    chat = ChatTemplate(tokenizer)
    try:
        yield chat
    finally:
        chat.close()


def test_a_conversation_becomes_a_prompt_by_the_tokenizers_own_template(tokenizer: Any) -> None:
    tokenizer.bos_token = "w9"
    with made(tokenizer, TEMPLATE) as chat:
        assert chat.render(ASKED).result(60) == "w9 w1 w2 w3 "
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="w9 $A", special_tokens=[("w9", tokenizer.bos_token_id)]
    )
    with made(tokenizer, TEMPLATE) as chat:
        prompt = chat.render(ASKED).result(60)  # what begins every text is added when the prompt is read, and but once
    assert prompt == " w1 w2 w3 "
    assert tokenizer(prompt).input_ids == tokenizer.apply_chat_template(ASKED, tokenize=True, return_dict=False)


def test_a_template_that_knows_no_developer_gets_the_system_and_tools_reach_one_that_does(tokenizer: Any) -> None:
    said = [{"role": "developer", "content": "w1"}, {"role": "tool", "content": "w2", "tool_call_id": "c"}]
    with made(tokenizer, "{% for m in messages %}{{ m.role }} {{ m.tool_call_id }} {% endfor %}") as chat:
        assert chat.render(said).result(60) == "system  tool c "
    with made(tokenizer, "{{ messages[0].role == 'developer' }}") as chat:
        assert chat.render(said).result(60) == "True"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "no chat template"),
        ({"tools": "a", "rag": "b"}, "no chat template"),
        ("{{ raise_exception('after the user comes the assistant') }}", r"refuses .* \(after the user comes the assis"),
        ("{{ messages.", "refuses these messages"),
    ],
)
def test_what_makes_no_prompt_is_said(tokenizer: Any, template: Any, says: str) -> None:
    with made(tokenizer, template) as chat, pytest.raises(InputError, match=says):
        chat.render(ASKED).result(60)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (ENDLESS, "did not finish within 1 s"),
        ("{{ 'a' * 3000000000 }}", "more than .* of memory"),
        ("{{ 'a' * 9000000 }}", "more than .* characters"),
    ],
)
def test_a_template_without_bounds_is_stopped_and_the_next_conversation_rendered(
    tokenizer: Any, wrong: str, says: str
) -> None:
    with made(tokenizer, f"{{% if messages|length == 1 %}}{wrong}{{% else %}}fine{{% endif %}}") as chat:
        first, second = chat.render(ASKED), chat.render(ASKED * 2)
        with pytest.raises(CheckpointError, match=says):
            first.result(60)
        assert second.result(60) == "fine"
