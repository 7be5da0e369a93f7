"""How often the task of a single request is recognised, and what each task is taken for."""

from typing import Any

import numpy as np

from monitoring.data import Data, taught


def measure(data: Data, *, per_task: int) -> dict[str, Any]:
    """Accuracy on live text, and the confusion (V, V): as measured, and as the monitor tells it from its history."""
    texts, labels = data.everything()
    monitor = taught(data, per_task)
    seen = monitor.snapshot().recognise(texts)
    V = len(data.tasks)
    table = np.zeros((V, V))
    np.add.at(table, (labels, seen.posteriors.argmax(axis=1)), 1)
    table /= table.sum(axis=1, keepdims=True)
    wrong = table - np.diag(np.diag(table))
    return {
        "accuracy, tasks alike": float(np.diag(table).mean()),
        "accuracy, texts alike": float((seen.posteriors.argmax(axis=1) == labels).mean()),
        "taken for novel": float(seen.novel.mean()),
        "cross-validated on the history": float(np.diag(monitor.confusion).mean()),
        "largest confusions": {
            f"{data.tasks[v]} as {data.tasks[w]}": float(wrong[v, w])
            for v, w in sorted(np.ndindex(V, V), key=lambda pair: -wrong[pair])[:5]
        },
        "confusion": table,
        "confusion, cross-validated": monitor.confusion,
    }
