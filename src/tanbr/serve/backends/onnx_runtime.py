"""The same model run by ONNX Runtime, over the very memory of torch's tensors: what a merge writes there is served.

ONNX Runtime packs weights into copies of its own unless it is told not to, and then never looks at the originals again:
what a merge writes would be ignored without a word. It also plans and frees a whole pass at once, outside of Python.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tanbr.errors import ConfigError, InputError
from tanbr.merge import Moe
from tanbr.moe.text import Inputs
from tanbr.serve.backends import bert_pass
from tanbr.serve.backends.onnx_graph import graph
from tanbr.serve.backends.torch_eager import TorchEager
from tanbr.types import Blend, FloatArray

TOKENS = 512  # of one pass, about: its products of matrices are quickest while their rows stay in the processor's cache


class OnnxRuntime(TorchEager):
    """A torch model, and sessions of ONNX Runtime that read its tensors."""

    name = "onnx"

    def __init__(self, model: Any, outputs: Mapping[str, Tensor]) -> None:
        super().__init__(model, outputs)
        self._sessions: dict[tuple[int, bool], Any] = {}  # threads, masked → session
        self._lock = threading.Lock()

    @classmethod
    def build(
        cls,
        moe: Moe,
        *,
        blend: Blend | None,
        device: str,
        probes: Callable[[], Sequence[Inputs]],
        least_agreement: float,
    ) -> Self:
        """Merge into a new model, and run it once."""
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"the backend onnx needs {error.name}; pip install 'tanbr[onnx]', or serve with --backend torch"
            ) from None
        if device != "cpu":
            raise ConfigError(f"the backend onnx runs on the CPU (got device {device!r}); set device to cpu")
        made = super().build(moe, blend=blend, device=device, probes=probes, least_agreement=least_agreement)
        if (why := _strange(made.model)) is not None:
            raise InputError(f"the backend onnx runs float32 BERT classifiers ({why}); serve with --backend torch")
        return made

    def classify(self, inputs: Inputs) -> FloatArray:
        """Answer padded texts: logits (n, columns)."""
        masked = not inputs["attention_mask"].all()
        ids = inputs["input_ids"]
        fed = {"input_ids": ids, "token_type_ids": inputs.get("token_type_ids", np.zeros_like(ids))}
        fed |= {"attention_mask": inputs["attention_mask"]} if masked else {}
        session = self._session(torch.get_num_threads(), masked)  # of the calling worker
        some = max(1, TOKENS // ids.shape[1])
        parts = [
            session.run(["logits"], {name: table[start : start + some] for name, table in fed.items()})[0]
            for start in range(0, len(ids), some)
        ]
        return np.concatenate(parts).astype(np.float64)

    def _session(self, threads: int, masked: bool) -> Any:
        """Find the session for so many threads, or make it: all of them read the same weights."""
        with self._lock:
            if (threads, masked) not in self._sessions:
                self._sessions[threads, masked] = session(self.model, threads=threads, masked=masked)
            return self._sessions[threads, masked]


def session(model: Any, *, threads: int, masked: bool, prepacked: bool = False) -> Any:
    """Make a session over a model's own memory; `prepacked`, it takes a copy, and hears of no merge."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it folds weights away
    options.add_session_config_entry("session.disable_prepacking", "0" if prepacked else "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    data, names = graph(model.config, masked=masked)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(model.get_parameter(name).detach().numpy()) for name in names]
    options.add_external_initializers(names, values)  # it would look for a file otherwise, but this makes copies …
    for name, value in zip(names, values, strict=True):
        options.add_initializer(name, value)  # … and this does not
    made = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    made.weights = values  # they must live as long
    return made


def _strange(model: Any) -> str | None:
    """Say what about a model ONNX Runtime is not told here; None if it can run it."""
    if not bert_pass.takes(model):
        return f"got {type(model).__name__}"
    if model.config.hidden_act != "gelu":
        return f"got the activation {model.config.hidden_act}"
    odd = next((p for p in model.parameters() if p.dtype != torch.float32), None)
    return None if odd is None else f"got {odd.dtype}"
