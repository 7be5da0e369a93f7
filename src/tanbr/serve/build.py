"""From a checkpoint's path and a configuration to a `Service`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

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
    {"text": …, "task": …, "label": …?} lines, text a string or a pair, or labelled rows in other files; by default
    `history.jsonl` in the checkpoint's folder, if there is one. It names the tasks that are served, teaches the
    monitor, and its labelled lines are the guard's probes. Without any the monitor groups the traffic by itself, into
    as many latent tasks as there are experts if the checkpoint has no card either.
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
    tasks = card.tasks or tuple(Task(f"latent-{number + 1}", ()) for number in range(moe.num_experts))
    probes: Sequence[Row] = ()
    if past is not None:
        tasks = tuple(next((t for t in card.tasks if t.name == task.name), task) for task in _tasks_of(past))
        labelled = _labelled(past, tasks)
        probes = labelled[:: max(1, len(labelled) // PROBES)][:PROBES]
    names = [task.name for task in tasks]

    def recogniser() -> Monitor:
        if past is None:
            return Monitor(names, "clusters", config=monitor)
        taught = Monitor(names, config=monitor)
        taught.learn([one.text for one in past], [one.task for one in past])
        return taught

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


class PastRequest(BaseModel):
    """A text whose task, and perhaps label, is known: a line of a history."""

    model_config = ConfigDict(frozen=True)
    text: str | tuple[str, str]
    task: str
    label: str | None = None


def _tasks_of(past: Sequence[PastRequest]) -> list[Task]:
    """The tasks that a history names, with the labels that it holds."""
    found: dict[str, set[str]] = {one.task: set() for one in past}
    for one in past:
        found[one.task] |= {one.label} if one.label else set()
    return [Task(name, ("accuracy",) if has else (), tuple(sorted(has))) for name, has in found.items()]


def _labelled(past: Sequence[PastRequest], tasks: Sequence[Task]) -> list[Row]:
    """The labelled texts of tasks that have these labels."""
    labels = {task.name: task.labels for task in tasks}
    known = [(one, labels[one.task]) for one in past if one.label in labels[one.task]]
    return [Row(one.task, one.text, float(of.index(str(one.label)))) for one, of in known]


def read_history(path: Path) -> list[PastRequest]:
    """Read a history: JSON lines, or labelled rows in other files (`tasks/own.py`)."""
    if path.suffix != ".jsonl" and is_own(path):
        own = read_own(path)
        labels = {task.name: task.labels for task in own.tasks}
        rows = [row for part in (own.rows, own.dev) for of_task in part.values() for row in of_task]
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
