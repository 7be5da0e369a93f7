"""The faster of torch and ONNX Runtime, where both can run a model."""

from typing import Unpack

from tanbr.merge import Moe
from tanbr.serve.backends.backend import Wanted
from tanbr.serve.backends.onnx_runtime import OnnxRuntime
from tanbr.serve.backends.torch_eager import TorchEager, build


class Fastest:
    """Chooses when a model is built; what is built is one of the two."""

    name = "auto"

    @staticmethod
    def build(moe: Moe, **wanted: Unpack[Wanted]) -> TorchEager:
        """Merge into a new model, and let both answer the probes."""
        return build(moe, (TorchEager, OnnxRuntime), **wanted)
