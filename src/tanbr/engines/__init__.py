"""vLLM and llama.cpp as what runs the models: tanbr stays in front and chooses the blend."""

from tanbr.engines.connect import connect, engine_builder

__all__ = ["connect", "engine_builder"]
