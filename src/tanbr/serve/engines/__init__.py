"""Engines that generate in tanbr's place: one file each says how one is talked to."""

from tanbr.serve.engines.dialect import Dialect
from tanbr.serve.engines.llamacpp import LlamaCpp
from tanbr.serve.engines.sglang import Sglang
from tanbr.serve.engines.vllm import Vllm
from tanbr.serve.engines.vllm_adapter import VllmAdapter

__all__ = ["ADAPTERS", "ENGINES", "Dialect"]

ENGINES: dict[str, type[Dialect]] = {"vllm": Vllm, "sglang": Sglang, "llamacpp": LlamaCpp}
ADAPTERS = {"vllm": VllmAdapter}  # … and how a blend of adapters is given to it as one
