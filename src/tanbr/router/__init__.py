"""The algorithm: task mix in, blend out, learning from rewards. NumPy only."""

from tanbr.router.conservative import Account
from tanbr.router.records import Terms, Told, TreeView
from tanbr.router.tanbr import Tanbr

__all__ = ["Account", "Tanbr", "Terms", "Told", "TreeView"]
