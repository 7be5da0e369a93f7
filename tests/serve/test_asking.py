import numpy as np
import pytest

from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.serve.engine import Engine

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 6, seed=5, split="test")]


@pytest.fixture(scope="module")
def engine(moe: Moe) -> Engine:
    return Engine(moe, batch=16)


def test_an_answer_does_not_depend_on_its_neighbours_in_the_batch(moe: Moe) -> None:
    engine = Engine(moe, batch=16, blend=np.eye(8)[2])
    engine.live.backend.model.double()  # type: ignore[attr-defined]  # so that rounding is far below any leak
    together = engine.logits(TEXTS)
    alone = np.concatenate([engine.logits([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-9)  # 1e7 roundings of float64, of values near 1
    assert together.shape == (len(TEXTS), len(engine.columns))


def test_no_texts_no_answers(engine: Engine) -> None:
    assert engine.logits([]).shape == (0, len(engine.columns))
