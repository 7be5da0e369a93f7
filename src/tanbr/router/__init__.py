"""The algorithm: task mix in, blend out, learning from rewards. NumPy only."""

from tanbr.router.groups import Groups
from tanbr.router.shell import RouterState
from tanbr.router.tanbr import Tanbr
from tanbr.types import Terms, TreeView

__all__ = ["Groups", "RouterState", "Tanbr", "Terms", "TreeView"]
