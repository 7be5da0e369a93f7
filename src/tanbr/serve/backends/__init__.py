"""What runs a dense model: one file a backend."""

from functools import partial

from tanbr.serve.backends.backend import Backend, Builder, Size
from tanbr.serve.backends.onnx_runtime import OnnxRuntime
from tanbr.serve.backends.torch_eager import TorchEager, build

__all__ = ["BACKENDS", "Backend", "Builder", "Size"]

BACKENDS: dict[str, Builder] = {
    "auto": partial(build, kinds=(TorchEager, OnnxRuntime)),  # the faster of the two, where both can run a model
    "onnx": OnnxRuntime.build,
    "torch": TorchEager.build,
}
