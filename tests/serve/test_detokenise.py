from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tanbr.serve.detokenise import TextStream

TEXTS = ["plain words", "naïve café — 字 and 🙂 done", "🙂", ""]


def byte_tokenizer(**settings: Any) -> PreTrainedTokenizerFast:
    """Every byte is a token: characters beyond ASCII take several."""
    words = {character: i for i, character in enumerate(["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<s>", **settings)


class Slow:
    """A tokenizer that is not the library's own."""

    is_fast = False
    clean_up_tokenization_spaces = False

    def __init__(self) -> None:
        self._fast = byte_tokenizer()

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return str(self._fast.decode(tokens, skip_special_tokens=skip_special_tokens))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["fast", "cleaned", "slow"])
def test_the_pieces_are_the_text_and_no_piece_is_half_a_character(text: str, kind: str) -> None:
    tokenizer = byte_tokenizer(clean_up_tokenization_spaces=kind == "cleaned")
    tokens = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    stream = TextStream(Slow() if kind == "slow" else tokenizer)
    pieces = [stream.add(token) for token in tokens] + [stream.end()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(map(bool, pieces)) == len(text)  # each character as soon as its last byte is there


@pytest.mark.parametrize("kind", ["fast", "slow"])
def test_what_ends_within_a_character_is_told_in_the_end(kind: str) -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer("a🙂")["input_ids"][:-1]
    stream = TextStream(Slow() if kind == "slow" else tokenizer)
    pieces = [stream.add(token) for token in tokens]
    assert pieces == ["a", "", "", ""]
    assert "".join([*pieces, stream.end()]) == tokenizer.decode(tokens)
