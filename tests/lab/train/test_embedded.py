from pathlib import Path
from typing import Any

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


def train(
    out: Path, *, stop_at: tuple[str, int] | None = None, config: Preset = SMALL, writes: bool = False
) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []

    def report(phase: str, done: int, total: int, note: str) -> None:
        seen.append((phase, done))
        if (phase, done) == stop_at:
            raise small.Stopped

    embedded.train_embedded(
        config, out=out, report=report, command="test", writes=writes, survey_rows=2, survey_blends=1
    )
    return seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    train(out)
    return out


def test_the_model_and_its_survey_are_written(whole: Path) -> None:
    weights = load_file(whole / "model" / "model.safetensors")
    assert weights["bert.encoder.layer.0.intermediate.dense.weight"].shape == (8, 16, 16)
    experts = weights["bert.encoder.layer.0.output.dense.weight"]
    assert not torch.equal(experts[0], experts[1])  # each learnt its own task
    assert (whole / "model" / "tokenizer.json").exists()
    assert (whole / "model" / "survey.json").exists()


@pytest.mark.parametrize("stop_at", [("ancestor", 3), ("experts", 5)])
def test_an_interrupted_run_resumes_to_the_same_weights(whole: Path, tmp_path: Path, stop_at: tuple[str, int]) -> None:
    with pytest.raises(small.Stopped):
        train(tmp_path, stop_at=stop_at)
    resumed = train(tmp_path)
    phase, step = stop_at
    assert (phase, step - 1) not in resumed  # saved every second step
    for name, value in load_file(whole / "model" / "model.safetensors").items():
        torch.testing.assert_close(load_file(tmp_path / "model" / "model.safetensors")[name], value, rtol=0, atol=0)


def test_one_that_writes_is_made_the_same_way_and_resumes(tmp_path: Path) -> None:
    train(tmp_path / "whole", writes=True)
    with pytest.raises(small.Stopped):
        train(tmp_path / "halved", stop_at=("experts", 5), writes=True)
    train(tmp_path / "halved", writes=True)
    weights, again = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "halved"))
    assert weights["decoder.block.0.layer.2.DenseReluDense.wi.weight"].shape == (8, 16, 16)
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    asked = [task.labels[0] for task in tiny.TASKS if not task.graded]
    tokenizer = TextEncoder.of(tmp_path / "whole/model", vocab_size=10_000).tokenizer
    assert tokenizer.batch_decode(tokenizer(asked)["input_ids"], skip_special_tokens=True) == asked
    assert all(len(ids) == 2 for ids in tokenizer(asked)["input_ids"])  # an answer is a word, and the end


@pytest.mark.parametrize("make", [embedded.word_tokenizer, embedded.writer_tokenizer])
def test_alignment_marks_words_whose_meaning_is_in_the_other_text(make: Any) -> None:
    """Also where inputs do not say which text a word is of: then every text has an end."""
    encoder = TextEncoder(make(max_length=64), max_length=64)
    texts = [("the dog found the apple .", "the dog discovered a pear ."), "the dog is funny"]
    meanings, words = embedded.meanings(encoder), encoder.tokenizer.get_vocab()
    labels = aligned(encoder(texts), meanings, end=encoder.tokenizer.eos_token_id)
    #                    the dog found the apple . | the dog discovered a pear .
    known = [label for label in labels[0].tolist() if label >= 0]
    assert known == [1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1]
    assert (labels[1] == -1).all()  # no pair, nothing to align
    assert meanings[words["found"]] == meanings[words["discovers"]] != meanings[words["bought"]]


@pytest.mark.parametrize("writes", [False, True])
def test_the_embedded_models_are_the_same_elsewhere(writes: bool, tmp_path: Path) -> None:
    def trained(config: Preset, out: Path) -> Path:
        train(out, config=config, writes=writes)
        return out

    small.elsewhere_too(tmp_path, trained, SMALL)
