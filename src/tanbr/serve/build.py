"""From a checkpoint's path and a configuration to a `Service`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tanbr.errors import DataError
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.serve.config import ServeConfig
from tanbr.serve.records import Observer
from tanbr.serve.service import Service
from tanbr.serve.store import resumes
from tanbr.tasks import tiny
from tanbr.tasks.card import read_card
from tanbr.tasks.rows import Row, Task
from tanbr.types import Text

HISTORY_SEED, PROBE_SEED = 1_000, 3_000  # rows of the embedded tasks that nothing else uses
PROBES = 64  # texts that a new blend answers before it is served


def build(
    checkpoint: str | Path | None,
    *,
    config: ServeConfig,
    router: RouterConfig | None = None,
    monitor: MonitorConfig | None = None,
    state: Path,
    history: Path | None = None,
    observer: Observer | None = None,
) -> Service:
    """Make a service, not yet started, of a checkpoint (the embedded model if None).

    `history` is a JSONL file of {"text": …, "task": …, "label": …?} lines, text a string or a pair: it names the
    tasks, teaches the monitor, and its labelled lines are the guard's probes. A foreign checkpoint without one gets
    latent tasks, as many as experts, that the monitor finds in the traffic.
    """
    moe = open_moe(embedded.path() if checkpoint is None else checkpoint, method=config.method)
    first = not resumes(state)
    recogniser: Monitor | None = None
    probes: Sequence[Row] = ()
    if history is not None:
        tasks, texts, names, labelled = read_history(history)
        probes = labelled[:: max(1, len(labelled) // PROBES)][:PROBES]
        if first:
            recogniser = Monitor([task.name for task in tasks], config=monitor)
            recogniser.learn(texts, names)
    elif Path(moe.path) == embedded.path():
        tasks = tiny.TASKS
        each = PROBES // len(tasks)
        probes = [row for task in tasks for row in tiny.generate(task.name, each, seed=PROBE_SEED)]
        recogniser = taught_monitor(monitor, seed=0) if first else None
    else:
        tasks = tuple(Task(f"latent-{number + 1}", ()) for number in range(moe.num_experts))
        recogniser = Monitor([task.name for task in tasks], "clusters", config=monitor) if first else None
    own = read_card(moe.path).experts_of([task.name for task in tasks])
    settings = (router or RouterConfig()).of_requests(own)
    chooser = Tanbr(  # the one in `state` wins
        moe.num_experts, len(tasks), max_active=config.max_active, seed=config.seed, config=settings
    )
    return Service(
        moe,
        tasks=tasks,
        config=config,
        state=state,
        router=chooser,
        monitor=recogniser,
        probes=probes,
        observer=observer,
    )


def taught_monitor(config: MonitorConfig | None = None, *, seed: int, per_task: int = 300) -> Monitor:
    """Make a monitor that has read a few hundred past texts of every generated task."""
    monitor = Monitor([task.name for task in tiny.TASKS], config=config)
    history = [row for task in tiny.TASKS for row in tiny.generate(task.name, per_task, seed=HISTORY_SEED + seed)]
    monitor.learn([row.text for row in history], [row.task for row in history])
    return monitor


def read_history(path: Path) -> tuple[tuple[Task, ...], list[Text], list[str], list[Row]]:
    """Read a history: its tasks with their labels, the texts, the task of each, and the labelled rows."""
    texts: list[Text] = []
    names: list[str] = []
    labels: list[str | None] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the history {path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            text, task, label = _entry(line, f"{path}, line {number}")
            texts.append(text)
            names.append(task)
            labels.append(label)
    if not texts:
        raise DataError(f"the history {path} is empty; give it lines like {{'text': …, 'task': …}}")
    found = {
        name: tuple(sorted({label for task, label in zip(names, labels, strict=True) if task == name and label}))
        for name in dict.fromkeys(names)
    }
    tasks = tuple(Task(name, ("accuracy",) if known else (), known) for name, known in found.items())
    rows = [
        Row(name, text, float(found[name].index(label)))
        for text, name, label in zip(texts, names, labels, strict=True)
        if label
    ]
    return tasks, texts, names, rows


def _entry(line: str, where: str) -> tuple[Text, str, str | None]:
    try:
        entry: Any = json.loads(line)
        text, task, label = entry["text"], entry["task"], entry.get("label")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f'{where} must be like {{"text": …, "task": …}}') from None
    if isinstance(text, list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        text = (text[0], text[1])
    if not isinstance(text, str | tuple) or not isinstance(task, str) or not isinstance(label, str | None):
        raise DataError(f"{where}: text must be a string or a pair of strings, task a string, and label one if given")
    return text, task, label
