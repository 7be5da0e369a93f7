"""What is known with few labels or none: late feedback, and groups of unlabelled traffic."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from monitoring.data import SIZES, Data, slots, taught
from tanbr.monitor import Monitor


def measure_clusters(data: Data, *, repeats: int, seed: int) -> dict[str, float]:
    """Purity of the latent tasks, and L1 of the mix once each is matched to a task; no label was used."""
    texts, labels = data.everything()
    rng = np.random.default_rng(seed)
    even = np.concatenate([rng.choice(np.flatnonzero(labels == task), 300) for task in range(len(data.tasks))])
    monitor = Monitor([f"latent {index}" for index in range(len(data.tasks))], "clusters")
    for part in np.array_split(rng.permutation(even), 4):
        monitor.observe([texts[place] for place in part])
        monitor.close_slot()
    groups = monitor.observe([texts[place] for place in even]).argmax(axis=1)
    monitor.close_slot()
    table = np.zeros((len(data.tasks), len(data.tasks)))
    np.add.at(table, (groups, labels[even]), 1)
    rows, columns = linear_sum_assignment(-table)
    errors = []
    for truth, places in slots(data, sizes=SIZES, repeats=repeats, seed=seed):
        monitor.observe([texts[place] for place in places])
        matched = np.zeros(len(truth))
        matched[columns] = monitor.close_slot().estimate[rows]
        errors.append(float(np.abs(matched - truth).sum()))
    return {"purity": float(table.max(axis=1).sum() / table.sum()), "L1 after matching": float(np.mean(errors))}


def measure_feedback(data: Data, *, seed: int) -> dict[str, float]:
    """Mean L1 of slots as late feedback with true tasks comes in, starting from 20 texts a task."""
    texts, _ = data.everything()
    drawn = slots(data, sizes=(256,), repeats=8, seed=seed)
    monitor = taught(data, 20)
    result = {}
    for known in (20, 40, 80, 160):
        history, tags = data.cut(known)
        if known > 20:
            before, before_tags = data.cut(known // 2)
            late = [
                (t, g)
                for t, g in zip(history, tags, strict=True)
                if (t, g) not in set(zip(before, before_tags, strict=True))
            ]
            monitor.learn([text for text, _ in late], [tag for _, tag in late])
            monitor.close_slot()
        errors = []
        for truth, places in drawn:
            monitor.observe([texts[place] for place in places])
            errors.append(float(np.abs(monitor.close_slot().estimate - truth).sum()))
        result[str(known)] = float(np.mean(errors))
    return result
