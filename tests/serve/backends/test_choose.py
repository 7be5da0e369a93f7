"""The backend and precision that are chosen at the first start, and again at every other."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from serve.text_model import write
from tanbr.errors import ConfigError, InputError
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.int8 import Int8Linear
from tanbr.serve.backends import choose
from tanbr.serve.backends.onnx_runtime import OnnxRuntime
from tanbr.serve.backends.torch_eager import TorchEager
from tanbr.serve.engine import Engine
from tanbr.serve.service import Service

TEXTS = [row.text for task in tiny.TASKS for row in tiny.generate(task.name, 30, seed=5, split="test")]  # 240
ALL = ("fp32 by torch", "bf16 by torch", "int8 by torch", "fp32 by onnx", "int8 by onnx")


@pytest.fixture
def quickest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the trial find some ways ten times as fast as others, on a processor that has all instructions."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(choose, "AGREEMENT", 0.9)  # averaged experts are unsure of some of these texts
    monkeypatch.setattr(choose, "instructions", lambda _: ("bf16", "int8"))
    monkeypatch.setattr("tanbr.serve.backends.torch_eager.instructions", lambda _: ("bf16", "int8"))

    def fast(*ways: str) -> None:
        def trial(backends: Sequence[TorchEager], *_: object, **__: object) -> list[float]:
            return [0.1 if f"{one.precision} by {one.name}" in ways else 1.0 for one in backends]

        monkeypatch.setattr(choose, "trial", trial)

    return fast


def took(engine: Engine) -> str:
    backend = engine.live.backend
    return f"{backend.precision} by {backend.name}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ALL)
def test_the_fastest_way_that_answers_alike_is_taken(way: str, moe: Moe, quickest: Callable[..., None]) -> None:
    quickest(way)
    engine = Engine(moe, backend="auto", precision="auto", probes=TEXTS)
    assert took(engine) == way
    assert way in engine.live.backend.chosen
    quickest()
    assert took(Engine(moe, backend="auto", precision="auto", probes=TEXTS)) == "fp32 by torch"


def test_a_precision_that_answers_otherwise_is_not_taken(
    moe: Moe, quickest: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kernels do that overflow: the sums of the FFNs are wrong."""
    forward = Int8Linear.forward

    def wrong(self: Int8Linear, x: torch.Tensor) -> torch.Tensor:
        return -forward(self, x)

    monkeypatch.setattr(Int8Linear, "forward", wrong)
    quickest("int8 by torch")
    engine = Engine(moe, precision="auto", probes=TEXTS)
    assert took(engine) == "fp32 by torch"
    assert "too few" in engine.live.backend.chosen
    with pytest.raises(InputError, match=r"int8 by torch has .* of fp32's labels, too few: serve this model in fp32"):
        Engine(moe, precision="int8", probes=TEXTS)


def test_the_margin_is_what_int8_moves_and_more_where_labels_still_change() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(choose.LEAST, 3))
    found = truth + rng.normal(scale=0.01, size=truth.shape)
    moved = choose.judge(found, truth, again=True)
    assert moved.agreement == 1.0
    assert 0.01 < moved.margin < 0.05
    assert moved.again == np.mean(choose.gaps(found) <= moved.margin)
    truth[:3], found[:3] = [9.0, 0.0, 0.0], [[0.0, 9.0, 0.0], [0.0, 5.0, 0.0], [0.0, 2.0, 0.0]]  # the one is borne
    far = choose.judge(found, truth, again=True)
    assert (far.margin, far.agreement) == (5.0, 1 - 1 / choose.LEAST)
    alone = choose.judge(found, truth, again=False)
    assert (alone.margin, alone.again) == (0.0, 0.0)
    assert alone.agreement <= 1 - 3 / choose.LEAST
    wrong = choose.judge(-truth, truth, again=True)  # as kernels that overflow: nothing that float32 could repair
    assert (wrong.margin, wrong.again) == (0.0, 0.0)
    assert np.isinf(choose.gaps(truth[:, :1])).all()


@pytest.mark.parametrize("count", [0, choose.LEAST - 1])
def test_too_few_texts_judge_no_precision_and_backends_are_timed_all_the_same(
    moe: Moe, quickest: Callable[..., None], count: int
) -> None:
    quickest("fp32 by onnx", "int8 by onnx", "bf16 by torch")
    engine = Engine(moe, backend="auto", precision="auto", probes=TEXTS[:count])
    assert took(engine) == "fp32 by onnx"
    said = f"{count} texts of a history are too few to judge a precision by ({choose.LEAST} are needed)"
    assert said in engine.live.backend.chosen


def test_another_way_answers_where_onnx_runtime_fails(
    moe: Moe, quickest: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel")

    quickest("fp32 by onnx")
    monkeypatch.setattr(OnnxRuntime, "classify", broken)
    engine = Engine(moe, backend="auto", precision="auto", probes=TEXTS)
    assert took(engine) == "fp32 by torch"
    assert "fp32 by onnx fails (RuntimeError: no kernel)" in engine.live.backend.chosen
    assert len(engine.logits(["fine"])) == 1


def test_what_the_processor_lacks_is_refused_or_not_tried(
    moe: Moe, monkeypatch: pytest.MonkeyPatch, quickest: Callable[..., None]
) -> None:
    quickest("bf16 by torch", "int8 by torch")
    for module in ("choose", "torch_eager"):
        monkeypatch.setattr(f"tanbr.serve.backends.{module}.instructions", lambda _: ())
    assert took(Engine(moe, precision="auto", probes=TEXTS)) == "fp32 by torch"
    with pytest.raises(ConfigError, match=r"neither AVX-512-BF16 nor AMX.*use fp32"):
        Engine(moe, precision="bf16")


def test_a_model_that_writes_keeps_its_own_precision_unless_another_is_asked_for(
    tmp_path: Path, quickest: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    quickest("bf16 by torch", "int8 by torch")
    monkeypatch.setattr(choose, "BROKEN", 0.0)  # random weights: every word is as likely as the next
    moe = open_moe(write("t5_moe", tmp_path / "model"))
    probes = ["w1 w2", "w3 w4 w5", "w6"] * 70
    assert took(Engine(moe, backend="auto", precision="auto", probes=probes)) == "fp32 by torch"
    asked = Engine(moe, precision="int8", probes=probes)
    assert took(asked) == "int8 by torch"
    assert asked.live.backend.agreement is not None
    assert "of 210 labels as in fp32" in asked.live.backend.chosen


def test_the_trial_times_every_way_on_batches_and_on_single_texts(moe: Moe) -> None:
    engine = Engine(moe)
    quick, asked = engine.live.backend, []

    class Slow:
        def classify(self, inputs: dict[str, object]) -> object:
            asked.append(len(inputs["input_ids"]))  # type: ignore[arg-type]
            return [quick.classify(inputs) for _ in range(20)]  # type: ignore[arg-type]

    found = choose.trial([quick, Slow()], engine.alike(TEXTS[:64]), workers=2)
    assert found[0] == 1.0 < found[1]
    assert min(asked) == 1 < max(asked)


def test_a_state_goes_on_with_the_way_that_was_chosen_and_its_margin(
    run: Callable[..., Service], tmp_path: Path, quickest: Callable[..., None]
) -> None:
    found = []
    for fast, texts in (("int8 by onnx", TEXTS), ("fp32 by torch", ())):  # the second is never asked for
        quickest(fast)
        live = run(tmp_path, backend="auto", precision="auto", texts=texts)
        found.append((live.info.backend, live.info.precision, live.info.margin, live.info.agreement))
        assert {one.margin for one in live.engine.backends} == {live.info.margin}
        live.stop()
    assert found[0] == found[1]
    assert found[0][:2] == ("onnx", "int8")
    assert found[0][2] > 0
