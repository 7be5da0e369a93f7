from typing import Any

import numpy as np

from tanbr.monitor.classifier import Classifier
from tanbr.monitor.recogniser import Recogniser
from tanbr.serve.assignment import Assignment
from tanbr.serve.lineup import Lineup, Live
from tanbr.types import Decision

NO_BACKEND: Any = None


def test_without_one_model_the_others_keep_their_places_and_are_assigned_to() -> None:
    models = tuple(Live(NO_BACKEND, version, None, slot=4, place=place) for place, version in enumerate((7, 8, 9)))
    mix = np.array([0.5, 0.5])
    panel = Decision(0, mix, np.eye(3), np.array([[0.1, 0.9], [0.5, 0.5], [0.9, 0.1]]))
    lineup = Lineup(models, Assignment(panel, Recogniser(("a", "b"), mix, Classifier.empty(2))))
    left = lineup.without(1)
    assert [(one.version, one.place) for one in left.models] == [(7, 0), (9, 2)]  # what is credited to stays
    assert left.assignment is not None
    assert left.assignment.panel.assign(np.eye(2)).tolist() == [1, 0]
    assert Lineup(models[:2]).without(0).models == models[1:2]
