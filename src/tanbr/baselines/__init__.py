"""One file a rival, each behind the interface of what it rivals; those named here are routers and need no torch."""

from tanbr.baselines.nucb import Nucb
from tanbr.baselines.registry import ROUTERS, build
from tanbr.baselines.rules import BestKnown, FixedBlend, Proportional, RandomBlend
from tanbr.baselines.vector_gp import VectorGP

__all__ = ["ROUTERS", "BestKnown", "FixedBlend", "Nucb", "Proportional", "RandomBlend", "VectorGP", "build"]
