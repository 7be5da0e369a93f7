"""The algorithm: task mix in, blend out, learning from rewards. NumPy only."""

from tanbr.router.grouped import GroupedRouter
from tanbr.router.records import Terms, Told, TreeView
from tanbr.router.tanbr import Tanbr

__all__ = ["GroupedRouter", "Tanbr", "Terms", "Told", "TreeView"]
