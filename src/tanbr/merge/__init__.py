"""A blend and a checkpoint in, one dense model out."""

from tanbr.merge.moe import Moe, open  # noqa: A004

__all__ = ["Moe", "open"]
