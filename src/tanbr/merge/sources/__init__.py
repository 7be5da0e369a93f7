"""Where experts come from: one file a source, each a subclass of `ExpertSource`."""

from tanbr.merge.sources.adapters import Adapters
from tanbr.merge.sources.fine_tuned import BlendOnly, FineTuned
from tanbr.merge.sources.moe_checkpoint import MoeCheckpoint
from tanbr.merge.sources.source import ExpertSource

__all__ = ["Adapters", "BlendOnly", "ExpertSource", "FineTuned", "MoeCheckpoint"]
