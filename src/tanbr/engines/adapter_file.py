"""Blends of adapters as one adapter each, for an engine that adds it to the base by itself."""

import shutil
import time
from pathlib import Path

from tanbr.merge import Moe
from tanbr.merge.sources.one_adapter import export_adapter, joinable
from tanbr.serve.backends.torch_eager import rest
from tanbr.types import Blend


class AdapterFile:
    """A place for one adapter. Every blend gets a folder of its own there.

    An engine may read an adapter again at any time, so that a path must mean the same weights as long as it exists.
    """

    def __init__(self, moe: Moe, folder: Path) -> None:  # noqa: ARG002 - what every kind of file is made of
        self.folder = self._place = folder
        self.blend: Blend | None = None  # (K,) that is in it, once it is whole
        self._written = 0

    @staticmethod
    def room(moe: Moe) -> int:
        """Bytes of an adapter that all experts are in, every module at the highest rank, in float32."""
        shape = {name: spec.shape for name, spec in moe.checkpoint.specs.items()}
        each = [list(adds.values()) for adds in joinable(moe).factors.values()]
        rank = max(sum(shape[one.down][0] for one in adds) for adds in each)
        return 4 * rank * sum(shape[adds[0].down][1] + shape[adds[0].up][0] for adds in each)

    def write(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:
        """Write a blend (K,) beside what was there before, and remove that."""
        self.blend, old, started = None, self.folder, time.perf_counter()
        self._written += 1
        self.folder = export_adapter(moe, self._place / str(self._written), blend=blend)
        if old != self._place:
            shutil.rmtree(old, ignore_errors=True)
        moe.release()
        rest(started, share)
        self.blend = blend


class KeptAdapter(AdapterFile):
    """An adapter in a new folder of the user's own, which stays."""

    def write(self, moe: Moe, blend: Blend, *, share: float = 1.0) -> None:  # noqa: ARG002 - nobody waits beside it
        """Write a blend (K,)."""
        self.folder = export_adapter(moe, self._place, blend=blend).resolve()
        self.blend = blend
