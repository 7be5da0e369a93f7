"""Engines that generate in tanbr's place: one file each says how one is talked to."""

from tanbr.serve.engines.dialect import Dialect
from tanbr.serve.engines.sglang import Sglang
from tanbr.serve.engines.vllm import Vllm

__all__ = ["ENGINES", "Dialect"]

ENGINES: dict[str, type[Dialect]] = {"vllm": Vllm, "sglang": Sglang}
