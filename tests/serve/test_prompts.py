from pathlib import Path

import pytest

from serve.text_model import write
from tanbr.errors import InputError
from tanbr.moe.text import TextEncoder
from tanbr.serve.prompts import Room


@pytest.fixture
def encoder(tmp_path: Path) -> TextEncoder:
    return TextEncoder.of(write("mixtral", tmp_path / "model"), vocab_size=64)


def words(count: int) -> str:
    return " ".join(["w1"] * count)


def test_prompt_and_answer_share_the_positions_of_a_causal_model(encoder: TextEncoder) -> None:
    room = Room(prompt=64, answer=30, both=64, too_long="refuse")
    assert room.fit([words(10), words(50)], None, encoder).limits == (30, 14)
    assert room.fit([words(10), words(50)], 14, encoder).limits == (14, 14)
    with pytest.raises(InputError, match="prompt 2 of 2 has 50 tokens, and this model reads at most 49 if it is to"):
        room.fit([words(10), words(50)], 15, encoder)
    assert room.fit([words(63)], None, encoder).limits == (1,)
    with pytest.raises(InputError, match="at most 63 if it is to write any; shorten"):
        room.fit([words(64)], None, encoder)


def test_an_encoder_decoder_has_room_for_each(encoder: TextEncoder) -> None:
    room = Room(prompt=20, answer=1_000, both=None, too_long="refuse")
    assert room.fit([words(20)], None, encoder).limits == (1_000,)
    with pytest.raises(InputError, match="has 21 tokens"):
        room.fit([words(21)], 1, encoder)


def test_what_is_cut_is_the_beginning(encoder: TextEncoder) -> None:
    room = Room(prompt=64, answer=30, both=64, too_long="cut")
    fitted = room.fit([f"w2 w3 {words(49)}", "w2"], 15, encoder)
    assert fitted.cut == (2, 0)
    assert [len(row) for row in fitted.columns["input_ids"]] == [49, 1]
    assert set(fitted.columns["input_ids"][0]) == set(encoder.tokenizer("w1")["input_ids"])
    assert room.fit(["w2"], 15, encoder).cut == ()


@pytest.mark.parametrize("wrong", [0, -1, 31])
def test_more_than_can_be_written_is_refused(encoder: TextEncoder, wrong: int) -> None:
    room = Room(prompt=64, answer=30, both=64, too_long="cut")
    with pytest.raises(InputError, match=rf"max_tokens must be 1..30 \(got {wrong}\)"):
        room.check(wrong)
