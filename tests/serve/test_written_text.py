from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tanbr.serve.writing import StopStrings, TextStream

TEXTS = ["plain words", "naïve café — 字 and 🙂 done", "🙂", ""]


def byte_tokenizer(**settings: Any) -> PreTrainedTokenizerFast:
    """Every byte is a token: characters beyond ASCII take several."""
    words = {character: i for i, character in enumerate(["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<s>", **settings)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("cleaned", [False, True])
def test_the_pieces_are_the_text_and_no_piece_is_half_a_character(text: str, *, cleaned: bool) -> None:
    tokenizer = byte_tokenizer(clean_up_tokenization_spaces=cleaned)
    tokens = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    stream = TextStream(tokenizer)
    pieces = [stream.add(token) for token in tokens] + [stream.end()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(map(bool, pieces)) == len(text)  # each character as soon as its last byte is there


def test_what_ends_within_a_character_is_told_in_the_end() -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer("a🙂")["input_ids"][:-1]
    stream = TextStream(tokenizer)
    pieces = [stream.add(token) for token in tokens]
    assert pieces == ["a", "", "", ""]
    assert "".join([*pieces, stream.end()]) == tokenizer.decode(tokens)


TEXT = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4)


def before(text: str, stops: list[str]) -> tuple[str, bool]:
    """What stands before the string that is the first to be complete, looked for letter by letter."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


@given(TEXT, STOPS, st.data())
def test_what_is_given_on_never_has_a_part_of_a_string_that_stops(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    filter_, told = StopStrings(stops), ""
    expected, stopped = before(text, stops)
    for number, piece in enumerate(pieces):
        told += filter_.add(piece, last=number == len(pieces) - 1)
        assert expected.startswith(told)  # nothing was told that had to be taken back
    assert (told, filter_.found) == (expected, stopped)
    assert filter_.text == told
