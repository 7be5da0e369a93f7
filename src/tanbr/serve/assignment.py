"""Which model of a panel answers a request: a pure function of what the text says about its task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanbr.monitor.belief import by_mix
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.types import FloatArray, PanelDecision, Text

Places = NDArray[np.intp]  # (n,) number of each request's model


@dataclass(frozen=True, eq=False)
class Assignment:
    """A slot's panel and the recogniser that was taken when it opened; both never change."""

    panel: PanelDecision
    recogniser: Recogniser

    def recognise(self, texts: Sequence[Text]) -> Recognition:
        """Read texts; the monitor counts what comes out, so that no text is read twice."""
        return self.recogniser.recognise(texts)

    def places(self, seen: Recognition, named: FloatArray | None = None) -> Places:
        """Choose a model for each request; `named` (V,) says which tasks the client has named, if it has."""
        posteriors = np.where(seen.novel[:, None], 0.0, seen.posteriors)
        if named is not None:
            posteriors = within(seen.posteriors, named)
        return self.panel.assign(posteriors)

    def posteriors(self, seen: Recognition, named: FloatArray | None = None) -> FloatArray:
        """What is known of each request's task (n, V), with the slot's mix for a prior."""
        return by_mix(seen.posteriors, self.panel.task_mix, among=named)

    def without(self, *places: int) -> "Assignment":
        """Leave some models out."""
        panel = self.panel
        left = replace(
            panel, blends=np.delete(panel.blends, places, axis=0), estimates=np.delete(panel.estimates, places, axis=0)
        )
        return replace(self, panel=left)


def within(posteriors: FloatArray, named: FloatArray) -> FloatArray:
    """Believe a client that names tasks (V,), 1 or 0 each: what the text says (n, V), among these alone."""
    inside = posteriors * named
    total = inside.sum(axis=1, keepdims=True)
    return np.where(total > 0, inside / np.maximum(total, 1e-300), named / named.sum(axis=-1, keepdims=True))


def believed(seen: Recognition, named: FloatArray) -> Recognition:
    """Believe clients that name tasks (n, V), 1 or 0 each: what is known of their requests then."""
    familiarity = np.where(named.all(axis=1), seen.familiarity, np.maximum(seen.familiarity, 0.0))
    informed = seen.informed or bool((named.sum(axis=1) == 1).all())
    return replace(seen, posteriors=within(seen.posteriors, named), familiarity=familiarity, informed=informed)
