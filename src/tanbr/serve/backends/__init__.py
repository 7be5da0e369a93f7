"""What runs a dense model: one file a backend."""

from tanbr.serve.backends.backend import Backend, Builder, Size
from tanbr.serve.backends.onnx_runtime import Fastest, OnnxRuntime
from tanbr.serve.backends.torch_eager import TorchEager

__all__ = ["BACKENDS", "Backend", "Builder", "Size"]

BACKENDS: dict[str, Builder] = {kind.name: kind.build for kind in (Fastest, OnnxRuntime, TorchEager)}
