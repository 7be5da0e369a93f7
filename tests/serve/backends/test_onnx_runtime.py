from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serve.text_model import write
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.engine import Engine

pytest.importorskip("onnxruntime", reason="the backend onnx is an extra: pip install 'tanbr[onnx]'")

from tanbr.serve.backends import onnx_runtime
from tanbr.serve.backends.onnx_runtime import session

ROUNDED = 1000 * 2.0**-24  # a thousand roundings of float32 that all point one way
TEXTS = ["the plot is clever", "who found it ?"]  # of one length or of two, as the tokenizer has it


def answers(made: Any, engine: Engine) -> np.ndarray:
    inputs = engine.encode.pad(engine.encode.encode(TEXTS[:1]).columns)
    return np.asarray(made.run(["logits"], {name: inputs[name] for name in ("input_ids", "token_type_ids")})[0])


def test_what_a_merge_writes_is_read(moe: Moe) -> None:
    """By default, ONNX Runtime takes a copy of the weights, and ignores later writes without a word."""
    engine = Engine(moe)
    model = engine.live.backend.model  # type: ignore[attr-defined]
    shared = session(model, threads=1, masked=False)
    before = answers(shared, engine)
    engine.live.backend.merge(moe, np.eye(8)[3])
    expected = engine.logits(TEXTS[:1])
    atol = ROUNDED * float(np.abs(expected).max())
    np.testing.assert_allclose(answers(shared, engine), expected, rtol=0, atol=atol)
    assert float(np.abs(expected - before).max()) > 1000 * ROUNDED  # the blends differ, or nothing is shown


def test_workers_with_more_threads_have_a_session_of_their_own_and_the_same_weights(moe: Moe) -> None:
    engine = Engine(moe, backend="onnx")
    inputs = engine.encode.pad(engine.encode.encode(TEXTS).columns)
    backend, found, threads = engine.live.backend, [], torch.get_num_threads()
    try:
        for blend in np.eye(8)[:2]:
            engine.swap(blend)
            for count in (1, 2):
                torch.set_num_threads(count)
                found.append(backend.classify(inputs))
    finally:
        torch.set_num_threads(threads)
    tolerance = ROUNDED * float(np.abs(found).max())
    assert np.abs(found[0] - found[1]).max() <= tolerance
    assert np.abs(found[2] - found[3]).max() <= tolerance
    assert np.abs(found[0] - found[2]).max() > 10 * tolerance


def test_in_int8_a_text_answers_as_it_does_alone(moe: Moe) -> None:
    """Each token has a range of its own, so that what is loud beside it changes nothing."""
    engine = Engine(moe, backend="onnx", precision="int8")
    together = engine.live.backend.classify(engine.encode.pad(engine.encode.encode(TEXTS).columns))
    alone = np.concatenate([engine.logits([text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 0.02 * np.abs(alone).max()  # a rounding may fall to the other side


def test_another_model_or_device_is_refused_with_a_sentence(tmp_path: Path, moe: Moe) -> None:
    with pytest.raises(InputError, match=r"runs BERT classifiers .* serve with --backend torch"):
        Engine(open_moe(write("t5_moe", tmp_path / "model")), backend="onnx")
    with pytest.raises(InputError, match=r"on the CPU .got device meta"):
        Engine(moe, device="meta", backend="onnx")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("none"), r"needs onnxruntime; pip install 'tanbr\[onnx\]'"),
        (OSError("libonnxruntime.so: no"), r"needs onnxruntime \(libonnxruntime.so: no\)"),
    ],
)
def test_a_package_that_is_missing_or_fails_to_load_is_named(
    moe: Moe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    def without(name: str) -> Any:
        if name == "onnxruntime":
            raise error

    monkeypatch.setattr(onnx_runtime, "import_module", without)
    with pytest.raises(InputError, match=said):
        Engine(moe, backend="onnx")
    assert Engine(moe, backend="auto").live.backend.name == "torch"  # type: ignore[attr-defined]
    assert ("libonnxruntime" in caplog.text) == isinstance(error, OSError)  # what is not installed is not missed
