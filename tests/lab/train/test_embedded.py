from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lab.train import small
from tanbr.lab.tasks import tiny
from tanbr.lab.train import embedded
from tanbr.lab.train.config import Preset
from tanbr.lab.train.embedded import aligned
from tanbr.moe.text import TextEncoder

SMALL = Preset(
    hidden_size=16, ffn_size=16, layers=1, heads=2, train_rows=60, batch=2, ancestor_steps=4, steps=6, warmup=2,
    save_every=2,
)  # fmt: skip


def train(out: Path, *, stop_at: tuple[str, int] | None = None, writes: bool = False) -> None:
    def report(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == stop_at:
            raise small.Stopped

    embedded.train_embedded(
        SMALL, out=out, report=report, command="test", writes=writes, survey_rows=2, survey_blends=1
    )


@pytest.mark.parametrize(
    ("writes", "stop_at", "ffn"),
    [
        (False, ("ancestor", 3), "bert.encoder.layer.0.intermediate.dense.weight"),
        (True, ("experts", 5), "decoder.block.0.layer.2.DenseReluDense.wi.weight"),
    ],
)
def test_a_model_and_its_survey_are_written_and_an_interrupted_run_ends_in_the_same_weights(
    tmp_path: Path, writes: bool, stop_at: tuple[str, int], ffn: str
) -> None:
    train(tmp_path / "whole", writes=writes)
    with pytest.raises(small.Stopped):
        train(tmp_path / "halved", stop_at=stop_at, writes=writes)
    train(tmp_path / "halved", writes=writes)
    weights, again = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "halved"))
    assert weights[ffn].shape == (8, 16, 16)
    assert not torch.equal(weights[ffn][0], weights[ffn][1])  # each expert learnt its own task
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    assert (tmp_path / "whole/model/survey.json").exists()
    if writes:
        asked = [task.labels[0] for task in tiny.TASKS if not task.graded]
        tokenizer = TextEncoder.of(tmp_path / "whole/model", vocab_size=10_000).tokenizer
        assert tokenizer.batch_decode(tokenizer(asked)["input_ids"], skip_special_tokens=True) == asked
        assert all(len(ids) == 2 for ids in tokenizer(asked)["input_ids"])  # an answer is a word, and the end


@pytest.mark.parametrize("writes", [False, True])
def test_alignment_marks_words_whose_meaning_is_in_the_other_text(*, writes: bool) -> None:
    """Also where inputs do not say which text a word is of: then every text has an end."""
    encoder = TextEncoder(embedded.word_tokenizer(max_length=64, writes=writes), max_length=64)
    texts = [("the dog found the apple .", "the dog discovered a pear ."), "the dog is funny"]
    meanings, words = embedded.meanings(encoder), encoder.tokenizer.get_vocab()
    labels = aligned(encoder(texts), meanings, end=encoder.tokenizer.eos_token_id)
    #                    the dog found the apple . | the dog discovered a pear .
    known = [label for label in labels[0].tolist() if label >= 0]
    assert known == [1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1]
    assert (labels[1] == -1).all()  # no pair, nothing to align
    assert meanings[words["found"]] == meanings[words["discovers"]] != meanings[words["bought"]]
