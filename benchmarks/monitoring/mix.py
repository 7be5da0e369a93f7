"""How well the mix of a slot is found: the monitor, counted votes, and the rivals on the same slots."""

from typing import Any

import numpy as np

from monitoring.data import SIZES, Data, slots, taught
from monitoring.rivals import KINDS, rivals_of
from tanbr.types import FloatArray


def measure(data: Data, *, per_task: int, repeats: int, seed: int, rivals: bool) -> dict[str, Any]:
    """Mean L1 error of a slot's mix, by method."""
    texts, _ = data.everything()
    drawn = slots(data, sizes=SIZES, repeats=repeats, seed=seed)
    errors: dict[str, list[float]] = {}

    def note(name: str, guess: FloatArray, truth: FloatArray) -> None:
        errors.setdefault(name, []).append(float(np.abs(guess - truth).sum()))

    monitor = taught(data, per_task)
    for truth, places in drawn:
        posteriors = monitor.observe([texts[place] for place in places])
        note("tanbr monitor", monitor.close_slot().estimate, truth)
        votes = np.bincount(posteriors.argmax(axis=1), minlength=len(data.tasks))
        note("tanbr monitor's posteriors, argmax counted", votes / votes.sum(), truth)
    for kind in KINDS if rivals else ():
        linear, quantifiers = rivals_of(data, per_task, kind)
        inputs = linear.transform(texts)
        votes_of = linear.model.predict(inputs)
        for truth, places in drawn:
            note(f"{kind}, argmax counted", np.bincount(votes_of[places], minlength=len(truth)) / len(places), truth)
        for name, quantifier in quantifiers.items():
            predictions = np.asarray(quantifier.classify(inputs))
            for truth, places in drawn:
                note(f"{kind}, QuaPy {name}", np.asarray(quantifier.aggregate(predictions[places])), truth)
    by_size = np.array([len(places) for _, places in drawn])
    return {
        name: {
            "mean": float(np.mean(values)),
            "standard_error": float(np.std(values) / np.sqrt(len(values))),
            **{str(size): float(np.mean(np.array(values)[by_size == size])) for size in SIZES},
        }
        for name, values in errors.items()
    }
