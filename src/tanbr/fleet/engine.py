"""The learner's engine where others answer: it merges to look blends over, and has the fleet do the same."""

from typing import Any

import numpy as np

from tanbr.fleet.fleet import Fleet
from tanbr.fleet.messages import Order
from tanbr.merge import Moe
from tanbr.serve.engine import Engine
from tanbr.serve.panel import Assignment, Lineup, Staged


class FleetEngine(Engine):
    """An engine whose blends are those of a fleet: what it commits, every replica does."""

    def __init__(self, moe: Moe, *, fleet: Fleet, **settings: Any) -> None:
        """Take the settings of an `Engine`."""
        super().__init__(moe, **settings)
        self._fleet = fleet

    def spread(self, *staged: Staged) -> None:
        """Have every replica make what was prepared ready; if that fails, nothing is prepared."""
        try:
            self._fleet.spread(tuple(one.version for one in staged), np.array([one.blend for one in staged]))
        except BaseException:
            self.discard()
            raise

    def discard(self, *staged: Staged) -> None:
        """Forget what was prepared, here and everywhere."""
        super().discard(*staged)
        self._fleet.withdraw()

    def commit(self, *staged: Staged, slot: int | None = None, assignment: Assignment | None = None) -> Lineup:
        """Let it answer everywhere; first here, where it may fail."""
        lineup = super().commit(*staged, slot=slot, assignment=assignment)
        models = lineup.models
        blends = np.array([one.blend for one in models])
        self._fleet.commit(Order(models[0].slot, tuple(one.version for one in models), blends, lineup.assignment))
        return lineup
