"""What runs a dense model: one file a backend, each named here and held to one contract."""

from tanbr.serve.backends.backend import Backend, Builder, Size
from tanbr.serve.backends.torch_eager import TorchEager
from tanbr.serve.backends.torch_int8 import TorchInt8

BACKENDS: dict[str, Builder] = {"torch": TorchEager.build, "torch-int8": TorchInt8.build}

__all__ = ["BACKENDS", "Backend", "Builder", "Size"]
