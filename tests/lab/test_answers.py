from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from lab.copies import copy
from tanbr.errors import CheckpointError
from tanbr.lab.methods import Answers
from tanbr.lab.tasks import glue, tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.layer import TaskRouting, route
from tanbr.moe.text import TextEncoder
from tanbr.serve.dense import DenseModel
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import FloatArray

ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 5, seed=7, split="test")]
TEXTS = [row.text for row in ROWS]
SPACE = LabelSpace(tiny.TASKS)
SOME = np.array([0.3, 0, 0, 0.2, 0, 0.5, 0, 0])
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


def test_it_takes_a_merge_that_is_no_blend_and_finds_back(moe: Moe) -> None:
    model = in_float64(moe)
    model.swap(np.eye(8)[0])
    before = model.answers(TEXTS)
    merged = moe.dense(SOME)
    model.put(merged)
    np.testing.assert_allclose(model.answers(TEXTS), plainly(model, merged), rtol=0, atol=EXACT)
    model.swap(np.eye(8)[0])
    np.testing.assert_array_equal(model.answers(TEXTS), before)


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
