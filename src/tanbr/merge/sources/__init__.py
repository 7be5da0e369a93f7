"""Where experts come from: each source is a subclass of `ExpertSource`."""

from tanbr.merge.sources.over_base import BlendOnly, OverBase
from tanbr.merge.sources.source import ExpertSource, MoeCheckpoint, MoeOverAncestor

__all__ = ["BlendOnly", "ExpertSource", "MoeCheckpoint", "MoeOverAncestor", "OverBase"]
