from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elsewhere import elsewhere
from lab.copies import copy, of_experts
from tanbr.errors import CheckpointError, InputError
from tanbr.lab.classifier import Classifier, PlainClassifier
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.tasks.metrics import LabelSpace
from tanbr.types import FloatArray

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 5, seed=7, split="test")]
SOME = np.array([0.3, 0, 0, 0.2, 0, 0.5, 0, 0])
EXACT = 1e-9  # float64: some thousand terms of size 10, each off by 2⁻⁵³


@pytest.fixture(scope="module")
def shared_below(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    """The embedded model with equal experts in all layers but the last."""

    def equal(name: str, value: torch.Tensor) -> torch.Tensor:
        return value[:1].expand_as(value) if of_experts(name) and ".layer.2." not in name else value

    return open_moe(copy(tmp_path_factory.mktemp("shared"), equal))


def in_float64(moe: Moe) -> Classifier:
    """What a CPU rounds in float32 is no matter here."""
    model = Classifier(moe)
    model.model.double()
    return model


@torch.inference_mode()
def plainly(model: Classifier, merged: Any) -> FloatArray:
    """The same texts, by the model's own code."""
    return merged.double()(**model.encode(TEXTS)).logits.numpy()


HALVES = (np.eye(8)[3] + np.eye(8)[5]) / 2  # of two equal experts they make the same expert, without any rounding


@pytest.mark.parametrize("blend", [np.eye(8)[3], HALVES, SOME], ids=["one", "halves", "some"])
def test_it_answers_as_the_dense_model_does(moe: Moe, shared_below: Moe, blend: FloatArray) -> None:
    for source, first in ((moe, 0),) if blend is SOME else ((moe, 0), (shared_below, 2)):
        model, reference = in_float64(source), source.dense().double()
        assert model.first == first
        model.swap(np.eye(8)[0])
        other = model.logits(TEXTS)  # stems are met under another blend
        model.swap(blend)
        source.merge_into(reference, blend)
        np.testing.assert_allclose(model.logits(TEXTS), plainly(model, reference), rtol=0, atol=EXACT)
        assert np.abs(model.logits(TEXTS) - other).max() > 1e-3
        np.testing.assert_array_equal(model.answers(TEXTS[:3]), model.logits(TEXTS[:3]))


def test_it_takes_a_merge_that_is_no_blend_and_finds_back(moe: Moe) -> None:
    model = in_float64(moe)
    model.swap(np.eye(8)[0])
    before = model.logits(TEXTS)
    merged = moe.dense(SOME)
    model.put(merged)
    np.testing.assert_allclose(model.logits(TEXTS), plainly(model, merged), rtol=0, atol=EXACT)
    model.swap(np.eye(8)[0])
    np.testing.assert_array_equal(model.logits(TEXTS), before)


def test_a_bad_blend_is_refused_and_the_old_one_goes_on(moe: Moe) -> None:
    model = Classifier(moe)
    model.swap(SOME)
    before = model.logits(TEXTS[:2])
    with pytest.raises(InputError, match="sum to 1"):
        model.swap(np.full(8, 0.2))
    np.testing.assert_array_equal(model.logits(TEXTS[:2]), before)


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    copy(tmp_path, lambda name, value: None if name.startswith("classifier") else value)
    with pytest.raises(CheckpointError, match="lacks classifier"):
        Classifier(open_moe(tmp_path))


@pytest.mark.parametrize("kind", [Classifier, lambda moe: PlainClassifier(moe, LabelSpace(tiny.TASKS))])
def test_it_answers_the_same_elsewhere(moe: Moe, kind: Any) -> None:
    def answers(device: str) -> Any:
        model = kind(open_moe(moe.path, device=device))
        model.swap(SOME)
        return np.array(model.answers(TEXTS))

    with elsewhere() as device:
        np.testing.assert_array_equal(answers(str(device)), answers("cpu"))
