"""What each way of serving will earn here, measured before the first request on rows that the history holds back.

Asked are every expert alone on its own task, pairs of experts, then method × G, where each row goes to the model that
it would be sent to. The other rows teach a monitor, and give Gram matrices. Nothing here is drawn.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from tanbr.errors import CheckpointError, ConfigError
from tanbr.files import write_atomically
from tanbr.merge import Moe
from tanbr.merge.gram_matrices import FOLDER
from tanbr.merge.measure import inputs_of, measure
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.serve.config import ServeConfig
from tanbr.serve.dense import DenseModel
from tanbr.serve.records import CheckView, Way
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row
from tanbr.tasks.text_to_text import answer
from tanbr.types import Decision, FloatArray, to_jsonable

if TYPE_CHECKING:
    from tanbr.serve.build import Known

HELD = 240  # rows that are held back in all: a standard error of three points for a mean over tasks, and some seconds
MOST, LEAST = 64, 8  # of one task
SHARE = 3  # a third of a task's rows at most: the rest has to teach
SMALL = 50e6  # parameters of a model that is asked all of these rows; a larger one is asked fewer
SHOWN = 48  # texts of a task that its expert is shown for Gram matrices
FILE = "check.json"
UNKNOWN = "it must be known which expert belongs to which task: name the experts' tasks in a list, and give --history"

Report = Callable[[str, int, int], None]  # what is measured, steps done, of how many


@dataclass(frozen=True, kw_only=True)
class Check(CheckView):
    """What was measured, with what a router may be told of it."""

    made_for: str = ""  # digest of weights, rows and limits
    blends: tuple[tuple[float, ...], ...]  # (N, K) that were measured by the method that is taken
    sums: tuple[tuple[float, ...], ...]  # (N, V) of rewards
    counts: tuple[tuple[float, ...], ...]  # (N, V) of the rows that were asked

    @property
    def known(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What a router may be told beforehand: blends (N, K), rewards (N, V), NaN where unseen, and counts (N, V)."""
        sums, counts = np.array(self.sums), np.array(self.counts)
        return np.array(self.blends), np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0), counts

    def save(self, folder: Path) -> None:
        """Keep it with the state."""
        write_atomically(folder / FILE, json.dumps(to_jsonable(asdict(self))) + "\n")

    @staticmethod
    def load(folder: Path, made_for: str) -> "Check | None":
        """Read what was measured for the same weights, rows and limits; None if there is nothing, or something else."""
        try:
            found = TypeAdapter(Check).validate_json((folder / FILE).read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.made_for == made_for else None


def divided(rows: Sequence[Row], tasks: Sequence[str], *, parameters: int) -> tuple[list[Row], list[Row]]:
    """Hold back evenly spaced rows of every task, fewer for a large model: held, rest. None if a task has too few."""
    by_task = {name: [row for row in rows if row.task == name] for name in tasks}
    wanted = min(MOST, HELD // max(1, len(by_task)))
    most = max(LEAST, round(wanted * min(1.0, SMALL / parameters)))
    held: list[Row] = []
    rest: list[Row] = []
    for own in by_task.values():
        count = min(most, len(own) // SHARE)
        if count < LEAST:
            return [], list(rows)
        chosen = set(np.linspace(0, len(own) - 1, count).astype(int).tolist())
        for number, row in enumerate(own):
            (held if number in chosen else rest).append(row)
    return held, rest


def sizes(moe: Moe) -> tuple[int, int]:
    """Bytes of one dense model in float32, and of what each further model of a panel takes."""
    one, more = (4 * sum(int(np.prod(piece.shape)) for piece in some) for some in (moe.plan.pieces, moe.plan.blended))
    return one, more


def bytes_of(moe: Moe, models: int, precision: str = "fp32") -> int:
    """Bytes of a panel of models that share what no blend changes. bf16 takes half, int8 has float32 beside it."""
    one, more = sizes(moe)
    return (one + (models - 1) * more) * {"bf16": 2, "int8": 5}.get(precision, 4) // 4


def most_models(moe: Moe, memory: int | None, precision: str = "fp32") -> int:
    """G: how many models fit; by default into what the un-merged experts would take, less one model."""
    one, two = (bytes_of(moe, models, precision) for models in (1, 2))
    if memory is None:
        return max(1, moe.source.trained - 1)
    if memory < one:
        raise ConfigError(f"memory must be at least {one} bytes, for one model (got {memory})")
    return int(min(1 + (memory - one) // (two - one), moe.num_experts))


class _Checking:
    """What is measured once, and looked up after that."""

    def __init__(
        self, moe: Moe, held: Sequence[Row], space: LabelSpace, own: Sequence[int], recogniser: Any, precision: str
    ) -> None:
        """Take the precision that is served, for the bytes: what is measured here is float32."""
        self.moe, self.held, self.space, self.own, self.precision = moe, list(held), space, list(own), precision
        names = [task.name for task in space.tasks]
        self.of = np.array([names.index(row.task) for row in held], dtype=np.intp)  # (n,)
        self.seen = recogniser.recognise([row.text for row in held])
        self._models: dict[str, DenseModel] = {}
        self._known: dict[tuple[str, bytes, bool], FloatArray] = {}  # rewards (n,), NaN where not asked

    def rewards(self, method: str, blend: FloatArray, which: NDArray[np.bool_], *, told: bool = False) -> FloatArray:
        """What a blend earns on some of the rows (n,): NaN on the others, unless they were asked before."""
        known = self._known.setdefault((method, blend.tobytes(), told), np.full(len(self.held), np.nan))
        new = np.flatnonzero(which & np.isnan(known))
        if len(new):
            if method not in self._models:
                self._models[method] = DenseModel(Moe(self.moe.source, method=method), self.space)
            model = self._models[method]
            model.swap(blend)
            rows = [self.held[i] for i in new]
            posteriors = np.eye(len(self.space.tasks))[self.of[new]] if told else self.seen.posteriors[new]
            answers = self.space.by_posterior(model.answers([row.text for row in rows]), posteriors)
            known[new] = self.space.rewards(rows, self.space.read(rows, answers))
        return known

    def table(self, method: str) -> list[tuple[FloatArray, FloatArray]]:
        """What was measured by a method of rows that are not told their task: blends (K,), rewards (n,)."""
        return [
            (np.frombuffer(x), rewards) for (by, x, told), rewards in self._known.items() if by == method and not told
        ]

    def by_task(self, rewards: FloatArray) -> tuple[float, ...]:
        """Mean by task (V,)."""
        return tuple(float(rewards[self.of == v].mean()) for v in range(len(self.space.tasks)))

    def blend_of(self, tasks: Sequence[int]) -> FloatArray:
        """The even blend of these tasks' own experts (K,)."""
        blend = np.zeros(self.moe.num_experts)
        np.add.at(blend, [self.own[v] for v in tasks], 1 / len(tasks))
        return blend

    def way(self, method: str, groups: NDArray[np.intp]) -> Way:
        """Serve each group of tasks (V,) by one model; a row goes where it would be sent."""
        G, V = int(groups.max()) + 1, len(groups)
        blends = np.array([self.blend_of(np.flatnonzero(groups == g).tolist()) for g in range(G)])
        estimates = (groups == np.arange(G)[:, None]).astype(np.float64)
        panel = Decision(0, np.full(V, 1 / V), blends, estimates)
        places = panel.assign(np.where(self.seen.novel[:, None], 0.0, self.seen.posteriors))
        earned = np.empty(len(self.held))
        for g, blend in enumerate(blends):
            mine = places == g
            earned[mine] = self.rewards(method, blend, mine)[mine]
        return Way(method, G, tuple(groups.tolist()), self.by_task(earned), bytes_of(self.moe, G, self.precision))

    def pairs(self, method: str, step: Callable[[], None]) -> FloatArray:
        """What tasks earn when two of them share a model (V, V): the mean of the two; on the diagonal alone."""
        V = len(self.space.tasks)
        found = np.zeros((V, V))
        for u in range(V):
            for v in range(u, V):
                which = (self.of == u) | (self.of == v)
                earned = self.rewards(method, self.blend_of([u, v] if u < v else [u]), which)
                found[u, v] = found[v, u] = (earned[self.of == u].mean() + earned[self.of == v].mean()) / 2
                step()
        return found


def grouped(shared: FloatArray, groups: int) -> NDArray[np.intp]:
    """Part V tasks into groups (V,), joining those that lose least by it; `shared` (V, V) is what two earn together."""
    parts = [[v] for v in range(len(shared))]
    alone = np.diag(shared)
    loss = (alone[:, None] + alone[None]) / 2 - shared
    while len(parts) > groups:
        a, b = min(
            ((a, b) for b in range(len(parts)) for a in range(b)),
            key=lambda two: float(loss[np.ix_(parts[two[0]], parts[two[1]])].mean()),
        )
        parts[a] += parts.pop(b)
    return np.array([next(g for g, part in enumerate(parts) if v in part) for v in range(len(shared))])


def checked(
    about: "Known", config: ServeConfig, state: Path, *, monitor: MonitorConfig | None, report: Report
) -> Check | None:
    """Measure the ways to serve experts on labelled rows of their tasks, or read what an earlier start has measured.

    Number of models and method are tried unless they are set; regression with Gram matrices that are measured first and
    left in the state. None, and a report why, where nothing can be measured.
    """
    moe, rows, space, own = about.moe, about.rows, about.space, about.own
    models, method = config.models, config.method
    moe.source.measured = measured_in(state, moe)
    told = json.dumps([moe.fingerprint, moe.num_experts, [(row.task, row.text, row.target) for row in rows]])
    limits = (config.memory, models, method, config.precision)
    made_for = hashlib.sha256(f"{told} {limits}".encode()).hexdigest()
    if (kept := Check.load(state, made_for)) is not None:
        return kept
    names = [task.name for task in space.tasks]
    held, rest = divided(rows, names, parameters=sizes(moe)[0] // 4)
    if not own or not held:
        few = f"the history has too few labelled rows: {SHARE * LEAST} a task are enough"
        report(f"no self-check: {few if own else UNKNOWN}", 0, 0)
        return None
    taught = Monitor(names, config=monitor)
    taught.learn([row.text for row in rest], [row.task for row in rest])
    most = most_models(moe, config.memory, config.precision) if models is None else models
    counts = sorted({G for G in (1, 2, 3, 4, 6, 8, 12, 16, most) if min(most, len(names)) >= G})
    counts = counts if models is None else counts[-1:]
    ready = [method] if method else ["average", *(["regression"] if _measured(moe, rest, space, own, report) else [])]
    checking = _Checking(moe, held, space, own, taught.snapshot(), config.precision)
    V, done = len(names), itertools.count(1)
    steps = V * (V + 1) // 2 + len(ready) * len(counts) + V

    def step() -> None:
        report("self-check", next(done), steps)

    alone = np.empty(len(held))
    for v in range(V):
        mine = checking.of == v
        alone[mine] = checking.rewards(ready[0], checking.blend_of([v]), mine, told=True)[mine]
        step()
    base = np.eye(moe.num_experts)[-1] if moe.source.with_base else None
    if base is not None:
        for one in ready:  # the router is told, too
            checking.rewards(one, base, np.ones(len(held), dtype=np.bool_))
    ones = {one: checking.way(one, np.zeros(V, dtype=np.intp)) for one in ready}
    better = max(ready, key=lambda one: ones[one].reward)
    shared = checking.pairs(better, step) if max(counts) > 1 and V > 1 else np.eye(V)
    ways = []
    for G in counts:
        for name in ready:
            ways.append(checking.way(name, grouped(shared, G)))
            step()
    found = CheckView(
        tasks=tuple(names),
        rows=len(held),
        alone=checking.by_task(alone),
        alone_bytes=sum(spec.numel for spec in moe.source.unmerged) * 4,
        base=() if base is None else checking.by_task(checking.rewards(ready[0], base, checking.of >= 0, told=True)),
        ways=tuple(ways),
    )
    blends, rewards = zip(*checking.table(found.taken.method), strict=True)
    earned, of = np.array(rewards), np.eye(V)[checking.of]  # (N, n) and (n, V)
    check = Check(
        **vars(found),
        made_for=made_for,
        blends=_rows(np.array(blends)),
        sums=_rows(np.nan_to_num(earned) @ of),
        counts=_rows(np.isfinite(earned) @ of),
    )
    check.save(state)
    return check


def _rows(table: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, table.tolist()))


def measured_in(state: Path, moe: Moe) -> Path:
    """Name the folder of a state for what is measured of these experts."""
    return state / "measured" / moe.fingerprint[:16]


def _measured(moe: Moe, rest: Sequence[Row], space: LabelSpace, own: Sequence[int], report: Report) -> bool:
    """Measure Gram matrices of what each expert sees, if nobody has; whether there are any."""
    folder = moe.source.beside(FOLDER)
    if folder.is_dir():
        return True
    if set(own) != set(range(moe.source.trained)):
        return False  # an expert without a task has nothing to be shown
    shown: list[list[Row]] = [[] for _ in range(moe.num_experts)]
    for task, expert in zip(space.tasks, own, strict=True):
        mine = [row for row in rest if row.task == task.name][:SHOWN]
        shown[expert] += mine
        if moe.source.with_base:
            shown[-1] += mine[: max(1, SHOWN // len(own))]  # it belongs to no task, and is shown some of each
    try:
        inputs = [
            inputs_of(moe, [row.text for row in some], [answer(row, space.task(row.task)) for row in some])
            for some in shown
        ]
        measure(moe, inputs, folder, rows=SHOWN, report=lambda done: report("gram matrices", done, len(inputs)))
    except CheckpointError:  # no linear layer, or matrices that cannot be inverted
        return False
    return True
