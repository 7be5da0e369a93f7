import numpy as np
import pytest

from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.serve.engine import Engine
from tanbr.tasks import tiny
from tanbr.tasks.metrics import LabelSpace

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 6, seed=5, split="test")]


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Engine:
    return Engine(moe, batch=16)


def test_the_head_is_the_label_space(engine: Engine) -> None:
    assert engine.columns == LabelSpace(tiny.TASKS).columns


def test_an_answer_does_not_depend_on_its_neighbours_in_the_batch(engine: Engine) -> None:
    engine.swap(np.eye(8)[2])
    together = engine.logits(TEXTS)
    alone = np.concatenate([engine.logits([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-4)
    assert together.shape == (len(TEXTS), len(engine.columns))


def test_a_swap_changes_the_answers_and_the_version_only_if_the_blend_is_new(engine: Engine) -> None:
    version = engine.swap(np.eye(8)[0])
    first = engine.logits(TEXTS)
    assert engine.swap(np.eye(8)[0]) == version
    assert engine.swap(np.full(8, 1 / 8)) == version + 1
    assert np.abs(engine.logits(TEXTS) - first).max() > 1e-2
    engine.swap(np.eye(8)[0])
    np.testing.assert_array_equal(engine.logits(TEXTS), first)  # back to the very same weights


def test_no_texts_no_answers(engine: Engine) -> None:
    assert engine.logits([]).shape == (0, len(engine.columns))


def test_a_bad_blend_leaves_the_old_one_serving(engine: Engine) -> None:
    version = engine.swap(np.eye(8)[1])
    before = engine.logits(TEXTS[:4])
    for wrong in ([0.5, 0.5], np.full(8, 0.2), [np.nan] * 8):
        with pytest.raises(InputError, match="blend"):
            engine.swap(wrong)
    assert engine.version == version
    np.testing.assert_array_equal(engine.logits(TEXTS[:4]), before)
