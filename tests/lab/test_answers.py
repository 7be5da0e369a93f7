from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from elsewhere import elsewhere
from lab.copies import copy
from lab.written import TEXTS as WRITTEN_TEXTS
from lab.written import Written, written
from serve.text_model import write
from tanbr.errors import CheckpointError, InputError
from tanbr.lab.answers import Answers
from tanbr.lab.compare import compare
from tanbr.lab.methods import Bench, method
from tanbr.lab.settings import Config
from tanbr.lab.tasks import glue, tiny
from tanbr.lab.tasks.traffic import Traffic
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.layer import TaskRouting, route
from tanbr.moe.text import TextEncoder
from tanbr.serve.dense import DenseModel, with_start
from tanbr.tasks import text_to_text
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import FloatArray

ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 5, seed=7, split="test")]
TEXTS = [row.text for row in ROWS]
SPACE = LabelSpace(tiny.TASKS)
SOME = np.array([0.3, 0, 0, 0.2, 0, 0.5, 0, 0])
QUARTERS = np.array([0.5, 0.0, 0.25, 0.25])
EXACT = 1e-9  # float64: some thousand terms of size 10, each off by 2⁻⁵³


def in_float64(moe: Moe, space: LabelSpace = SPACE) -> DenseModel:
    """What a CPU rounds in float32 is no matter here."""
    model = DenseModel(moe, space)
    model.model.double()
    return model


@torch.inference_mode()
def plainly(model: DenseModel, merged: Any) -> FloatArray:
    """The same texts, by transformers' own pass."""
    return merged.double()(**model.encode(TEXTS)).logits.numpy()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("written") / "t5")


@pytest.mark.parametrize("blend", [np.eye(8)[3], SOME], ids=["one", "some"])
def test_it_answers_as_the_dense_model_does(moe: Moe, blend: FloatArray) -> None:
    model, reference = in_float64(moe), moe.dense().double()
    model.swap(np.eye(8)[0])
    other = np.array(model.answers(TEXTS))
    model.swap(blend)
    moe.merge_into(reference, blend)
    np.testing.assert_allclose(model.answers(TEXTS), plainly(model, reference), rtol=0, atol=EXACT)
    assert np.abs(np.array(model.answers(TEXTS)) - other).max() > 1e-3


def test_it_takes_a_merge_that_is_no_blend_and_finds_back(moe: Moe) -> None:
    model = in_float64(moe)
    model.swap(np.eye(8)[0])
    before = model.answers(TEXTS)
    merged = moe.dense(SOME)
    model.put(merged)
    np.testing.assert_allclose(model.answers(TEXTS), plainly(model, merged), rtol=0, atol=EXACT)
    model.swap(np.eye(8)[0])
    np.testing.assert_array_equal(model.answers(TEXTS), before)


def test_a_bad_blend_is_refused_and_the_old_one_goes_on(moe: Moe) -> None:
    answers = Answers(DenseModel(moe, SPACE))
    before = answers.of(SOME, TEXTS[:2])
    with pytest.raises(InputError, match="sum to 1"):
        answers.of(np.full(8, 0.2), TEXTS[:2])
    np.testing.assert_array_equal(answers.of(SOME, TEXTS[:3])[:2], before)


def test_a_checkpoint_whose_head_is_missing_or_for_other_labels_is_refused(moe: Moe, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the data's labels are 0, 1, entailment"):
        DenseModel(moe, LabelSpace(glue.TASKS))
    copy(tmp_path, lambda name, value: None if name.startswith("classifier") else value)
    with pytest.raises(CheckpointError, match="lacks classifier"):
        DenseModel(open_moe(tmp_path), SPACE)


def test_no_text_is_answered_twice_under_a_blend(moe: Moe, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(DenseModel(moe, SPACE))
    asked: list[int] = []
    answer = answers.model.answers
    monkeypatch.setattr(answers.model, "answers", lambda texts: asked.append(len(texts)) or answer(texts))
    first = answers.of(SOME, TEXTS[:8] + TEXTS[:4])
    np.testing.assert_array_equal(first[8:], first[:4])
    np.testing.assert_array_equal(answers.of(SOME, TEXTS[:8]), first[:8])
    assert np.abs(np.array(answers.of(np.eye(8)[0], TEXTS[:2])) - first[:2]).max() > 1e-3
    np.testing.assert_array_equal(answers.of(SOME, TEXTS[:8]), first[:8])
    answers.of(SOME, TEXTS[:10])
    assert asked == [8, 2, 2]


def test_tagged_answers_are_those_of_the_unmerged_model(moe: Moe) -> None:
    tasks = [task.name for task in tiny.TASKS]
    tags = [tasks.index(row.task) for row in ROWS]
    unmerged = AutoModelForSequenceClassification.from_pretrained(moe.path).eval().double()
    route(unmerged, TaskRouting(torch.tensor(tags)))
    with torch.inference_mode():
        wanted = unmerged(**TextEncoder.of(moe.path, vocab_size=10**6)(TEXTS)).logits.numpy()
    found = Answers(in_float64(moe)).each(np.eye(8), np.array(tags), TEXTS)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=EXACT)  # sums in another order


def test_it_writes_what_the_dense_model_generates(four: Written) -> None:
    model = in_float64(four.moe, four.corpus.space)  # rounding must not decide between two words
    assert model.writes
    model.swap(QUARTERS)
    dense = with_start(four.moe.dense().double())
    four.moe.merge_into(dense, QUARTERS)
    for text, answer in zip(WRITTEN_TEXTS, model.answers(WRITTEN_TEXTS), strict=True):
        ids = torch.tensor([model.encode.tokenizer(text)["input_ids"]])
        tokens = dense.generate(input_ids=ids, max_new_tokens=model.longest, do_sample=False)
        assert answer == model.encode.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0]


def test_written_answers_are_compared_by_exact_match(four: Written) -> None:
    corpus = four.corpus
    bench = Bench(four.moe, corpus, Config())
    bench.answers.model.model.double()
    mixes = np.full((3, 2), 0.5)
    stream = Traffic(corpus.stream, mixes, requests=16, seed=0)
    players = {name: method(name).contestant(bench, mixes=mixes, seed=0) for name in ("average", "tanbr", "random")}
    result = compare(players, stream, best="average")
    known = in_float64(four.moe, corpus.space)
    known.swap(np.full(4, 1 / 4))
    for slot, record in zip(stream, result.records["average"], strict=True):
        right = [
            known.answers([row.text])[0] == text_to_text.answer(row, corpus.space.task(row.task)) for row in slot.rows
        ]
        assert record.total_reward == pytest.approx(np.mean(right))
    assert 0 < result.rewards("average").mean() < 1


def test_a_model_that_neither_classifies_nor_translates_is_refused(four: Written, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a mixtral model; answers are compared of"):
        DenseModel(open_moe(write("mixtral", tmp_path / "m")), four.corpus.space)


@pytest.mark.parametrize("kind", ["head", "written"])
def test_it_answers_the_same_elsewhere(moe: Moe, four: Written, kind: str) -> None:
    source, space, texts, blend = (
        (moe, SPACE, TEXTS, SOME) if kind == "head" else (four.moe, four.corpus.space, WRITTEN_TEXTS, QUARTERS)
    )

    def answers(device: str) -> Any:
        model = DenseModel(open_moe(source.path, device=device), space)
        model.swap(blend)
        return np.array(model.answers(texts))

    with elsewhere() as device:
        np.testing.assert_array_equal(answers(str(device)), answers("cpu"))
