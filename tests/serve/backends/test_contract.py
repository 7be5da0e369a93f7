"""What every backend must do: the same answers as float32 up to its own rounding, before and after many swaps."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.text_model import write, written
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.text import Inputs
from tanbr.serve.backends import Backend
from tanbr.serve.backends.choose import Precision, gaps, instructions
from tanbr.serve.engine import Engine
from tanbr.types import Blend, FloatArray

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 6, seed=5, split="test")]
PROMPTS = ["w1 w2 w3", "w9", "w5 w5 w5 w5"]  # for the tiny models
SWAPS = 40
ROWS = 80  # of each task, whose labels must agree
# Relative error of the logits (in the Euclidean norm). float32: a thousand roundings of 2^-24 that all point one way.
# int8: a weight is off by up to half of 1/63 of its row's largest, an activation by half of 1/127 of its token's; with
# the largest four times the typical one that is 0.02 a map, 0.07 after twelve maps, and three times that for safety.
# bf16: half of 1/128 of every product's operands, and less than int8 in all.
TOLERANCE = {"fp32": 1000 * 2.0**-24, "bf16": 0.1, "int8": 0.2}
WAYS = [
    ("torch", "fp32"),
    ("torch", "int8"),
    *([("onnx", "fp32"), ("onnx", "int8")] if find_spec("onnxruntime") else []),
]
WAYS += [("torch", "bf16")] if "bf16" in instructions("cpu") else []
AGREEMENT = 0.995  # least share of rows whose best label is that of float64
WRITERS = [precision for name, precision in WAYS if name != "onnx"]  # ONNX Runtime has classifiers alone
SURE = 1.5  # a best label this far above the next, by exact arithmetic, is any backend's best label


def blends(count: int, experts: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(experts, 0.5), size=count)


def relative(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def sure_labels(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows whose best label is far above the next, and that label."""
    second, first = np.sort(logits[:, :14], axis=1)[:, -2:].T
    rows = np.flatnonzero(first - second > SURE)
    return rows, logits[rows, :14].argmax(axis=1)


@pytest.fixture(scope="module")
def exact(moe: Moe) -> list[np.ndarray]:
    """What float64 answers under each blend."""
    inputs = Engine(moe).encode(TEXTS)
    return [moe.dense(blend).double()(**inputs).logits.detach().numpy() for blend in blends(4, 8)]


def same_after(engine: Engine, chosen: np.ndarray, between: np.ndarray, ask: Callable[[], Any]) -> list[Any]:
    """Ask under each of the chosen blends, and again after others: nothing is left of what came between."""
    first = []
    for blend in chosen:
        engine.swap(blend)
        first.append(ask())
    for blend in between:
        engine.swap(blend)
    for blend, before in zip(chosen, first, strict=True):
        engine.swap(blend)
        np.testing.assert_array_equal(ask(), before)
    return first


@pytest.mark.parametrize("spare", [True, False])
@pytest.mark.parametrize(("backend", "precision"), WAYS)
def test_answers_are_those_of_exact_arithmetic_before_and_after_many_swaps(
    moe: Moe, exact: list[np.ndarray], backend: str, precision: Precision, spare: bool
) -> None:
    engine = Engine(moe, backend=backend, precision=precision, spare=spare)
    first = same_after(engine, blends(4, 8), blends(SWAPS, 8), lambda: engine.logits(TEXTS))
    for found, expected in zip(first, exact, strict=True):
        assert relative(found, expected) < TOLERANCE[precision]
        rows, labels = sure_labels(expected)
        assert len(rows) > len(TEXTS) / 4  # or nothing would be compared
        np.testing.assert_array_equal(found[rows, :14].argmax(axis=1), labels)
    assert relative(first[0], first[1]) > 3 * TOLERANCE["fp32"]  # blends differ, or nothing is shown
    assert engine.live.backend.size.own_bytes <= engine.live.backend.size.nbytes


@pytest.mark.parametrize(("backend", "precision"), WAYS)
def test_labels_are_those_of_exact_arithmetic(moe: Moe, backend: str, precision: Precision) -> None:
    rows = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, ROWS, seed=6, split="test")]
    engine = Engine(moe, backend=backend, precision=precision)
    inputs = engine.encode(rows)
    wanted = AGREEMENT if precision == "fp32" else 0.98  # averaged experts are unsure of some rows
    for blend in (np.full(8, 1 / 8), np.eye(8)[2]):
        engine.swap(blend)
        expected = moe.dense(blend).double()(**inputs).logits.detach().numpy()[:, :14].argmax(axis=1)
        assert (engine.logits(rows)[:, :14].argmax(axis=1) == expected).mean() >= wanted


@pytest.mark.parametrize("backend", [name for name, precision in WAYS if precision == "int8"])
def test_float32_answers_again_where_the_best_labels_of_int8_are_close(moe: Moe, backend: str) -> None:
    exact, engine = (Engine(moe, backend=backend, precision=p, spare=True) for p in ("fp32", "int8"))
    inputs = engine.encode.pad(engine.encode.encode(TEXTS).columns)
    for blend in blends(3, 8):  # merges write both, in both twins
        exact.swap(blend)
        engine.judged(1.0, 0.0)
        engine.swap(blend)
        rounded, expected = engine.live.backend.classify(inputs), exact.live.backend.classify(inputs)
        margin = float(np.median(gaps(rounded)))
        engine.judged(1.0, margin)
        found, close = engine.live.backend.classify(inputs), gaps(rounded) <= margin
        np.testing.assert_array_equal(found[~close], rounded[~close])
        np.testing.assert_allclose(found[close], expected[close], atol=TOLERANCE["fp32"] * np.abs(expected).max())
        assert relative(rounded, expected) > 3 * TOLERANCE["fp32"]


@pytest.mark.parametrize("precision", WRITERS)
@pytest.mark.parametrize("family", ["t5_moe", "mixtral"])
def test_a_model_writes_the_same_before_and_after_swaps(tmp_path: Path, family: str, precision: Precision) -> None:
    engine = Engine(open_moe(write(family, tmp_path / "model")), precision=precision, spare=True)
    first = same_after(engine, np.eye(4), blends(10, 4), lambda: written(engine, PROMPTS, max_tokens=6))
    assert len({tuple(texts) for texts in first}) > 1


@pytest.mark.parametrize(("backend", "precision"), WAYS)
def test_twins_share_what_no_blend_changes(moe: Moe, backend: str, precision: Precision) -> None:
    engine = Engine(moe, backend=backend, precision=precision)
    one = engine.live.backend
    other = one.twin(moe)
    inputs = engine.encode.pad(engine.encode.encode(TEXTS[:4]).columns)
    before = one.classify(inputs)
    other.merge(moe, np.eye(8)[3])
    np.testing.assert_array_equal(one.classify(inputs), before)
    assert np.abs(other.classify(inputs) - before).max() > 0
    assert one.columns == other.columns == engine.columns
    assert not one.writes


class Fewest(Backend):
    """The members that have no default, as docs/backends.md has it: its logits are the first weights of the blend."""

    columns = ("first", "second")

    def __init__(self, blend: Blend) -> None:
        self.blend = blend

    def merge(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        self.blend = blend

    def twin(self, moe: Moe) -> "Fewest":
        return Fewest(self.blend)

    def classify(self, inputs: Inputs) -> FloatArray:
        return np.tile(self.blend[:2], (len(inputs["input_ids"]), 1))


@pytest.mark.parametrize("spare", [True, False])
def test_a_backend_of_few_members_is_served_and_swapped(moe: Moe, spare: bool) -> None:
    engine = Engine(moe, backend=lambda *_, **__: Fewest(np.eye(8)[0]), spare=spare)
    assert engine.logits(TEXTS[:3]).tolist() == [[1.0, 0.0]] * 3
    staged = engine.prepare(np.eye(8)[1])
    assert engine.logits(TEXTS[:1], live=staged).tolist() == [[0.0, 1.0]]
    assert engine.sane(TEXTS[0], staged)
    engine.commit(staged)
    assert engine.logits(TEXTS[:1]).tolist() == [[0.0, 1.0]]
    assert (engine.writes, engine.available, engine.live.backend.agreement) == (False, True, None)
