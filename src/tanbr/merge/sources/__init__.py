"""Where experts come from: one file a source, each a subclass of `ExpertSource`."""

from tanbr.merge.sources.ancestor import MoeOverAncestor
from tanbr.merge.sources.over_base import BlendOnly, OverBase
from tanbr.merge.sources.source import ExpertSource, MoeCheckpoint

__all__ = ["BlendOnly", "ExpertSource", "MoeCheckpoint", "MoeOverAncestor", "OverBase"]
