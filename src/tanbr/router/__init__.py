"""The algorithm: task mix in, blend out, learning from rewards. NumPy only."""

from tanbr.router.shell import AskTell
from tanbr.router.tanbr import Tanbr
from tanbr.types import Terms

__all__ = ["AskTell", "Tanbr", "Terms"]
