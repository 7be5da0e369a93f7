import json
import shutil
from pathlib import Path

import pytest

from serve.text_model import write
from tanbr.errors import CheckpointError
from tanbr.moe import embedded
from tanbr.moe.text import UNSAID, TextEncoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded.path(), tmp_path / "model"))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def encoder(folder: Path, max_length: int | None = None) -> TextEncoder:
    return TextEncoder.of(folder, vocab_size=10**6, max_length=max_length)


def test_a_text_may_be_as_long_as_model_and_tokenizer_allow(folder: Path) -> None:
    change(folder / "tokenizer_config.json", model_max_length=300)
    change(folder / "config.json", max_position_embeddings=40)
    assert encoder(folder).max_length == 40
    assert encoder(folder, 4_000).max_length == 40
    assert encoder(folder, 16).max_length == 16
    change(folder / "config.json", max_position_embeddings=4_000)
    assert encoder(folder).max_length == 300
    unlimited = write("t5_moe", folder / "t5")
    assert encoder(unlimited).max_length == UNSAID
    change(unlimited / "tokenizer_config.json", model_max_length=99)
    assert encoder(unlimited).max_length == 99


def test_what_is_left_out_is_counted_and_special_tokens_stay(folder: Path) -> None:
    change(folder / "config.json", max_position_embeddings=8)
    encode = encoder(folder)
    words = ["the", "film", "is", "good", "and", "the", "plot", "is", "dull"]
    whole = encode.tokenizer(" ".join(words))["input_ids"]
    encoded = encode.encode([" ".join(words), "the film", (" ".join(words), "the film")])
    rows = encoded.columns["input_ids"]
    assert encoded.cut == (len(whole) - 8, 0, len(whole) + 3 - 8)
    assert list(rows[0]) == [*whole[:7], whole[-1]]  # cut on the right
    assert list(rows[2])[-3:] == [*encode.tokenizer("the film")["input_ids"][1:]]  # of a pair, the longer text is cut
    for side, kept in (("left", [whole[0], *whole[-7:]]), ("right", rows[0])):  # and back again
        assert encode.encode([" ".join(words)], side=side).columns["input_ids"] == [kept]


def test_a_tokenizer_that_is_missing_or_too_large_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="but the model only 7"):
        TextEncoder.of(folder, vocab_size=7)
    with pytest.raises(CheckpointError, match="no tokenizer"):
        TextEncoder.of(tmp_path, vocab_size=7)
