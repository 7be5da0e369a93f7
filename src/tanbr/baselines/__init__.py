"""One file a rival, each behind the interface of what it rivals; those named here are routers and need no torch."""

from tanbr.baselines.nucb import Nucb
from tanbr.baselines.untaught import BestKnown, FixedBlend, Proportional, RandomBlend
from tanbr.baselines.vector_gp import VectorGP

__all__ = ["BestKnown", "FixedBlend", "Nucb", "Proportional", "RandomBlend", "VectorGP"]
