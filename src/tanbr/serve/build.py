"""From a checkpoint's path and a configuration to a `Service`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from tanbr.errors import CheckpointError, ConfigError, DataError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.inspect import glance
from tanbr.merge.sources import OverBase
from tanbr.merge.sources.expert_list import is_list
from tanbr.moe import embedded
from tanbr.moe.device import device_of
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig
from tanbr.serve.backends import Builder
from tanbr.serve.check import UNKNOWN, Check, Report, checked, sizes
from tanbr.serve.config import ServeConfig
from tanbr.serve.engine import Engine
from tanbr.serve.labels import label_space
from tanbr.serve.lineage import method_of
from tanbr.serve.records import Observer
from tanbr.serve.service import Service, log
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.own import is_own, read_own
from tanbr.tasks.rows import Row, Task
from tanbr.tasks.text_to_text import prompt

HISTORY = "history.jsonl"  # beside a checkpoint: its tasks' past texts, unless --history names others
MEASURED = 4e9  # bytes of a base in float32 that is measured here where an engine runs it
PROBES = 64  # texts that a new blend answers before it is served
JUDGED = 200  # texts that a precision is judged by, and that the trial of backends is of


def logged(what: str, done: int, total: int) -> None:  # noqa: ARG001
    """Log what is a sentence, and no progress."""
    if not total:
        log.warning(what)


def build(
    checkpoint: str | Path | None,
    *,
    experts: Sequence[str | Path] = (),
    blend_only: Literal["all", "ffn"] | None = None,
    base: bool | None = None,
    config: ServeConfig,
    router: RouterConfig | None = None,
    monitor: MonitorConfig | None = None,
    state: Path,
    history: Path | None = None,
    adopt: bool = False,
    check: bool = False,
    force: bool = False,
    report: Report = logged,
    observer: Observer | None = None,
    backend: Builder | None = None,
    make_engine: Callable[..., Engine] = Engine,
) -> Service:
    """Make a service, not yet started, of a checkpoint (the embedded model if None), or of `experts` and their base.

    The options are those of `StartConfig`. With `check`, how many models are served and how they are merged is measured
    first, where that is not set (`check.py`). `backend` and `make_engine` are those of a `Service`.
    """

    def say(line: str) -> None:
        report(line, 0, 0)

    moe = opened(
        checkpoint, experts=experts, blend_only=blend_only, base=base, blend=config.blend, method=config.method, say=say
    )
    elsewhere = backend is not None or make_engine is not Engine  # engines add up, replicas have no Gram matrices
    method = config.method or moe.source.method or ("average" if elsewhere else None)
    config = config.model_copy(update={"blend": config.blend or moe.source.weights or None, "method": method})
    if not force:
        seen = glance(moe)
        if seen.verdict == "do not merge":
            raise CheckpointError(f"{moe.path} should not be merged: {seen.reason}; pass --force to serve all the same")
    about = known_of(moe, history)
    tasks, own, past = about.tasks, about.own, about.past
    names = [task.name for task in tasks]
    device_of(config.device)  # before anything is measured
    found: Check | None = None
    if config.unmerged:
        if not own:
            raise ConfigError(f"to serve experts un-merged, {UNKNOWN}")
        config = config.model_copy(update={"models": moe.source.trained, "explore": "never"})
    elif check and config.blend is None:
        adapters = isinstance(moe.source, OverBase) and len(moe.source.adapters) == moe.source.trained
        if backend is None or (config.engine is not None and adapters and sizes(moe)[0] <= MEASURED):
            found = checked(about, config, state, monitor=monitor, report=report)
    if found is not None:
        found = found if adopt else replace(found, method=method_of(state))
        config = config.model_copy(update={"models": found.taken.models})
        moe = Moe(moe.source, method=found.taken.method)

    def recogniser() -> Monitor:
        taught = Monitor(names, config=monitor)  # without a history, the first labels teach it
        taught.learn([one.text for one in past], [one.task for one in past])
        return taught

    settings = (router or RouterConfig()).of_requests(own, () if found is None else found.taken.groups)
    chooser = Tanbr(moe.num_experts, len(tasks), max_active=config.max_active, seed=config.seed, config=settings)
    if found is not None:
        chooser.warm_start(*found.known)
    return Service(
        moe,
        tasks=tasks,
        config=config,
        state=state,
        router=chooser,
        monitor=recogniser,
        monitor_config=monitor or MonitorConfig(),
        probes=about.rows[:: max(1, len(about.rows) // PROBES)][:PROBES],
        texts=[past[i].text for i in np.linspace(0, len(past) - 1, min(JUDGED, len(past))).astype(int)],
        own_experts=own,
        check=found,
        adopt=adopt,
        say=say,
        observer=observer,
        backend=backend,
        make_engine=make_engine,
    )


def opened(
    checkpoint: str | Path | None,
    *,
    experts: Sequence[str | Path] = (),
    blend_only: Literal["all", "ffn"] | None = None,
    base: bool | None = None,
    blend: object = None,
    method: str | None = None,
    say: Callable[[str], None] = log.warning,
) -> Moe:
    """Open what is to be served (the embedded model if None), with the base as one more expert if that is wanted.

    Where nobody says whether it is, weights in a `blend` leave no room for it.
    """
    base = False if base is None and isinstance(blend, tuple) else base
    place = embedded.path() if checkpoint is None else checkpoint
    over = bool(experts) or is_list(place)
    again = partial(open_moe, place, experts=experts, blend_only=blend_only, method=method)
    moe = again(base=base if over else None)
    card = read_card(moe.path)
    known = moe.source.expert_tasks or card.expert_tasks
    if base is False or moe.source.with_base or (base is None and (known or not (over or card.ancestor))):
        return moe
    if not over and not card.ancestor:
        raise CheckpointError(f"{moe.path} does not name its ancestor in tanbr.json; leave out --base")
    try:
        return again(base=True if over else Path(moe.path) / card.ancestor)
    except CheckpointError as why:
        if base:
            raise
        say(f"the base takes no weight: {why}")
        return moe


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of experts before they serve."""

    moe: Moe
    tasks: tuple[Task, ...]  # (V,)
    own: tuple[int, ...]  # (V,) the expert of each task; empty where that is not known
    past: "Sequence[PastRequest]" = ()
    rows: Sequence[Row] = ()  # of `past`, those with labels

    @property
    def space(self) -> LabelSpace:
        """The labels of the tasks, on the model's head if it has one."""
        head = tuple(str(name) for _, name in sorted((self.moe.plan.config().id2label or {}).items()))
        return label_space(self.tasks, head) or LabelSpace(self.tasks)


def known_of(moe: Moe, history: Path | None) -> Known:
    """Put together what card, list and history say.

    Without a history, labels tell the tasks apart; without labels, the monitor's tasks are groups of its own.
    """
    card = read_card(moe.path).of_experts(moe.source.expert_tasks, moe.source.expert_labels)
    if history is None and (Path(moe.path) / HISTORY).is_file():
        history = Path(moe.path) / HISTORY
    if history is None:
        latent = tuple(Task(f"latent-{number + 1}", ()) for number in range(moe.source.trained))
        labelled = card.tasks and all(task.metrics for task in card.tasks)
        own = card.experts_of([task.name for task in card.tasks]) if labelled else ()
        return Known(moe, card.tasks or latent, _in_range(moe, own))
    past = read_history(history)
    if not str(moe.plan.config().architectures[0]).endswith("ForSequenceClassification"):  # it is sent prompts
        past = [one.model_copy(update={"text": prompt(one.text)}) for one in past]
    _check_labels(past, card.tasks, moe.source.expert_labels, source=history)
    said = {task.name: task for task in card.tasks if task.metrics}  # an adapter names no labels
    tasks = tuple(said.get(task.name, task) for task in _tasks_of(past))
    heads = moe.source.expert_labels[: moe.source.trained]
    own = card.experts_of([task.name for task in tasks]) or _by_labels(tasks, heads)
    return Known(moe, tasks, _in_range(moe, own), past, _labelled(past, tasks))


def _in_range(moe: Moe, own: tuple[int, ...]) -> tuple[int, ...]:
    if max(own, default=0) >= moe.num_experts:
        raise CheckpointError(
            f"the card of {moe.path} gives a task to expert {max(own)}, counted from 0, but there are "
            f"{moe.num_experts}: start with --base if the last was the base, or correct tanbr.json"
        )
    return own


def _by_labels(tasks: Sequence[Task], heads: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Find the expert of each task (V,) by the labels of its head; none at all unless each task has one of its own."""
    fits = [[k for k, head in enumerate(heads) if task.labels and set(task.labels) <= set(head)] for task in tasks]
    own = tuple(some[0] for some in fits if len(some) == 1)
    return own if len(set(own)) == len(tasks) else ()


class PastRequest(BaseModel):
    """A text whose task, and perhaps label, is known: a line of a history."""

    model_config = ConfigDict(frozen=True)
    text: str | tuple[str, str]
    task: str
    label: str | None = None


def _tasks_of(past: Sequence[PastRequest]) -> list[Task]:
    found: dict[str, set[str]] = {}
    for one in past:
        found.setdefault(one.task, set()).update([one.label] if one.label else ())
    return [Task(name, ("accuracy",) if has else (), tuple(sorted(has))) for name, has in found.items()]


def _check_labels(
    past: Sequence[PastRequest], tasks: Sequence[Task], heads: Sequence[Sequence[str]], *, source: Path
) -> None:
    """Refuse a label that the task's expert does not have, or no expert where the task is nobody's."""
    own, every = {task.name: task.labels for task in tasks}, tuple(dict.fromkeys(label for of in heads for label in of))
    for one in past:
        known = own.get(one.task, every)
        if known and one.label is not None and one.label not in known:
            raise DataError(
                f"{source}: no expert has the label {one.label!r} of {one.task} (known are {', '.join(known)}); "
                "correct it, or name the expert's labels in a list of experts"
            )


def _labelled(past: Sequence[PastRequest], tasks: Sequence[Task]) -> list[Row]:
    """The labelled texts of tasks that have these labels, or a scale with these scores."""
    known = {task.name: task for task in tasks}
    rows = []
    for one in past:
        task = known[one.task]
        if task.graded and task.metrics and one.label is not None:
            with suppress(ValueError):
                rows.append(Row(one.task, one.text, float(np.clip(float(one.label), *task.scale))))
        elif one.label in task.labels:
            rows.append(Row(one.task, one.text, float(task.labels.index(str(one.label)))))
    return rows


def read_history(path: Path) -> list[PastRequest]:
    """Read a history: JSON lines, or labelled rows in other files (`tasks/own.py`)."""
    if path.suffix != ".jsonl" and is_own(path):
        own = read_own(path)
        labels = {task.name: task.labels for task in own.tasks}
        rows = [row for of_task in own.rows.values() for row in of_task]  # those for figures alone are left out
        named = [labels[row.task][int(row.target)] if labels[row.task] else None for row in rows]
        pairs = zip(rows, named, strict=True)
        return [PastRequest(text=row.text, task=row.task, label=label) for row, label in pairs]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the history {path}: {error}") from None
    found: list[PastRequest] = []
    for number, line in enumerate(lines, start=1):
        try:
            found += [PastRequest.model_validate_json(line)] if line.strip() else []
        except ValidationError as error:
            place, said = ".".join(map(str, error.errors()[0]["loc"])), error.errors()[0]["msg"]
            raise DataError(
                f'{path}, line {number} must be like {{"text": …, "task": …, "label": …}}, the text a string or a pair '
                f"of strings, the label optional ({place or 'the line'}: {said})"
            ) from None
    if not found:
        raise DataError(f"the history {path} is empty; give it lines like {{'text': …, 'task': …}}")
    return found
