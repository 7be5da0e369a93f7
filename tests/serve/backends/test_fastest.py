"""The backend that is chosen at the first start, and again at every other."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tanbr.merge import Moe
from tanbr.serve.backends import fastest
from tanbr.serve.engine import Engine
from tanbr.serve.service import Service

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(("seconds", "chosen"), [((1.0, 0.9), "onnx"), ((1.0, 1.0), "torch"), ((1.0, 2.0), "torch")])
def test_onnx_runtime_answers_where_it_is_faster(
    seconds: tuple[float, float], chosen: str, moe: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastest, "trial", lambda *_: seconds)
    assert Engine(moe, backend="auto").live.backend.name == chosen  # type: ignore[attr-defined]


def test_torch_answers_where_onnx_runtime_fails(moe: Moe, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(fastest.OnnxRuntime, "classify", broken)
    engine = Engine(moe, backend="auto")
    assert type(engine.live.backend) is fastest.TorchEager
    assert len(engine.logits(["fine"])) == 1


def test_a_state_goes_on_with_the_backend_that_was_chosen(
    run: Callable[..., Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ((1.0, 0.5), (0.5, 1.0)):  # the second is never asked for
        monkeypatch.setattr(fastest, "trial", lambda *_, found=seconds: found)
        live = run(tmp_path, backend="auto")
        assert live.info.backend == "onnx"
        live.stop()
