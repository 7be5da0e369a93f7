from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tanbr.lab.tasks import tiny
from tanbr.lab.train import embedded
from tanbr.lab.train.config import Preset
from tanbr.lab.train.embedded import aligned
from tanbr.moe.text import TextEncoder

SMALL = Preset(
    hidden_size=16, ffn_size=16, layers=1, heads=2, train_rows=60, batch=2, ancestor_steps=4, steps=6, warmup=2,
    save_every=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("writes", "ffn"),
    [
        (False, "bert.encoder.layer.0.intermediate.dense.weight"),
        (True, "decoder.block.0.layer.2.DenseReluDense.wi.weight"),
    ],
)
def test_a_model_whose_experts_learnt_their_tasks_and_its_survey_are_written(
    tmp_path: Path, writes: bool, ffn: str
) -> None:
    model, _ = embedded.train_embedded(
        SMALL, out=tmp_path, report=lambda *_: None, command="test", writes=writes, survey_rows=2, survey_blends=1
    )
    weights = load_file(model / "model.safetensors")
    assert weights[ffn].shape == (8, 16, 16)
    assert not torch.equal(weights[ffn][0], weights[ffn][1])  # each expert learnt its own task
    assert (model / "survey.json").exists()
    if writes:
        asked = [task.labels[0] for task in tiny.TASKS if not task.graded]
        tokenizer = TextEncoder.of(model, vocab_size=10_000).tokenizer
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
