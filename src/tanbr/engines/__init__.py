"""Engines that generate in tanbr's place: one file each says how one is talked to."""

from tanbr.engines.dialect import Dialect
from tanbr.engines.llamacpp import LlamaCpp
from tanbr.engines.sglang import Sglang
from tanbr.engines.vllm import Vllm
from tanbr.engines.vllm_adapter import VllmAdapter

__all__ = ["ADAPTERS", "ENGINES", "Dialect"]

ENGINES: dict[str, type[Dialect]] = {"vllm": Vllm, "sglang": Sglang, "llamacpp": LlamaCpp}
ADAPTERS = {"vllm": VllmAdapter}  # … and how a blend of adapters is given to it as one
