"""One file a rival, each behind the interface of what it rivals; those named here are routers and need no torch."""

from tanbr.lab.rivals.nucb import Nucb
from tanbr.lab.rivals.registry import ROUTERS, build
from tanbr.lab.rivals.rules import BestKnown, FixedBlend, Proportional, RandomBlend
from tanbr.lab.rivals.vector_gp import VectorGP

__all__ = ["ROUTERS", "BestKnown", "FixedBlend", "Nucb", "Proportional", "RandomBlend", "VectorGP", "build"]
