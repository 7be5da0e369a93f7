"""From a checkpoint's path and a configuration to a `Service`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tanbr.errors import CheckpointError, DataError
from tanbr.merge import open as open_moe
from tanbr.merge.inspect import glance
from tanbr.moe import embedded
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.serve.backends import Builder
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.records import Observer
from tanbr.serve.service import Service
from tanbr.serve.survey import Survey
from tanbr.tasks.card import read_card
from tanbr.tasks.own import is_own, read_own
from tanbr.tasks.rows import Row, Task
from tanbr.types import Text

HISTORY = "history.jsonl"  # beside a checkpoint: its tasks' past texts, unless --history names others
PROBES = 64  # texts that a new blend answers before it is served


def build(
    checkpoint: str | Path | None,
    *,
    experts: Sequence[str | Path] = (),
    blend_only: Literal["all", "ffn"] | None = None,
    config: ServeConfig,
    router: RouterConfig | None = None,
    monitor: MonitorConfig | None = None,
    state: Path,
    history: Path | None = None,
    survey: Path | None = None,
    warm_start: Path | None = None,
    adopt: bool = False,
    force: bool = False,
    observer: Observer | None = None,
    backend: Builder | None = None,
    make_engine: Callable[..., Engine] = Engine,
) -> Service:
    """Make a service, not yet started, of a checkpoint (the embedded model if None), or of `experts` and their base.

    The checkpoint's card, or a list of experts, says its tasks. `history` is a JSONL file of
    {"text": …, "task": …, "label": …?} lines, text a string or a pair, or labelled rows in other files: it names the
    tasks that are served, teaches the monitor, and its labelled lines are the guard's probes. A file `history.jsonl` in
    the checkpoint's folder is one, too. Without any the monitor
    groups the traffic by itself, into as many latent tasks as there are experts if the checkpoint has no card either.
    `survey` is what `tanbr survey` wrote: its best blend for the mix is the start blend; the router is told a
    `warm_start` like it before its first slot. Experts that do not merge are refused unless `force` is given. `backend`
    and `make_engine` are those of a `Service`.
    """
    method = config.method if "method" in config.model_fields_set else None  # a list of experts may name one
    place = embedded.path() if checkpoint is None else checkpoint
    moe = open_moe(place, experts=experts, blend_only=blend_only, method=method)
    if config.blend is None and moe.source.weights:
        config = config.model_copy(update={"blend": moe.source.weights})
    if not force:
        verdict, why = glance(moe)
        if verdict == "do not merge":
            raise CheckpointError(f"{moe.path} should not be merged: {why}; pass --force to serve it all the same")
    card = read_card(moe.path).of_experts(moe.source.expert_tasks, moe.source.expert_labels)
    if history is None and (Path(moe.path) / HISTORY).is_file():
        history = Path(moe.path) / HISTORY
    past = None if history is None else read_history(history)
    tasks = card.tasks or _latent(moe.num_experts)
    if past is not None:
        tasks = tuple(next((t for t in card.tasks if t.name == task.name), task) for task in past.tasks)
    names = [task.name for task in tasks]
    probes: Sequence[Row] = ()
    if past is not None:
        labelled = past.rows_of(tasks)
        probes = labelled[:: max(1, len(labelled) // PROBES)][:PROBES]

    def recogniser() -> Monitor:
        if past is not None:
            taught = Monitor(names, config=monitor)
            taught.learn(past.texts, past.names)
            return taught
        return Monitor(names, "clusters", config=monitor)

    own = card.experts_of(names) if past is not None else ()
    # where nobody taught the monitor, its tasks are groups of its own, and no expert is known to be theirs
    settings = (router or RouterConfig()).of_requests(own)
    chooser = Tanbr(moe.num_experts, len(tasks), max_active=config.max_active, seed=config.seed, config=settings)
    if warm_start is not None:
        known = Survey.load(warm_start).check(moe, tasks, warm_start)
        chooser.warm_start(known.blends, known.rewards, known.counts)
    return Service(
        moe,
        tasks=tasks,
        config=config,
        state=state,
        router=chooser,
        monitor=recogniser,
        monitor_config=monitor or MonitorConfig(),
        probes=probes,
        expert_names=card.expert_tasks,
        own_experts=own,
        survey=None if survey is None else Survey.load(survey).check(moe, tasks, survey),
        adopt=adopt,
        observer=observer,
        backend=backend,
        make_engine=make_engine,
    )


def _latent(count: int) -> tuple[Task, ...]:
    return tuple(Task(f"latent-{number + 1}", ()) for number in range(count))


@dataclass(frozen=True)
class PastRequests:
    """Texts whose tasks, and perhaps labels, are known."""

    texts: list[Text]
    names: list[str]  # (n,) task of each
    labels: list[str | None]  # (n,)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that it names, with the labels that it holds."""
        found: dict[str, set[str]] = {name: set() for name in self.names}
        for name, label in zip(self.names, self.labels, strict=True):
            found[name] |= {label} if label else set()
        return tuple(Task(name, ("accuracy",) if has else (), tuple(sorted(has))) for name, has in found.items())

    def rows_of(self, tasks: Sequence[Task]) -> list[Row]:
        """The labelled texts of tasks that have these labels."""
        known = {task.name: task for task in tasks}
        entries = zip(self.texts, self.names, self.labels, strict=True)
        return [
            Row(name, text, float(known[name].labels.index(label)))
            for text, name, label in entries
            if label in known[name].labels
        ]


def read_history(path: Path) -> PastRequests:
    """Read a history: the texts, the task of each, and the labels where it has them.

    Labelled rows in other files than JSON lines (`tasks/own.py`) are one, too.
    """
    if path.suffix != ".jsonl" and is_own(path):
        own = read_own(path)
        labels_of = {task.name: task.labels for task in own.tasks}
        rows = [row for part in (own.rows, own.dev) for of_task in part.values() for row in of_task]
        named = [labels_of[row.task][int(row.target)] if labels_of[row.task] else None for row in rows]
        return PastRequests([row.text for row in rows], [row.task for row in rows], named)
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
    return PastRequests(texts, names, labels)


def _entry(line: str, where: str) -> tuple[Text, str, str | None]:
    try:
        entry: Any = json.loads(line)
        text, task, label = entry["text"], entry["task"], entry.get("label")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f'{where} must be like {{"text": …, "task": …}}') from None
    if isinstance(text, list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        text = (text[0], text[1])
    if not isinstance(text, str | tuple) or not isinstance(task, str) or not isinstance(label, str | None):
        raise DataError(f"{where}: text must be a string or a pair of strings, task a string, and label one if given")
    return text, task, label
