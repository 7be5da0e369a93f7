"""What blends are worth: the reward of many blends on every task, measured once on held-out rows.

It finds the best fixed blend (a strong rival) and the best blend for a known mix (an upper bound), and it says
whether a checkpoint makes the problem real at all.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.baselines.search import Table, search
from tanbr.errors import DataError
from tanbr.experiments.answers import model_for
from tanbr.experiments.corpus import Corpus, Rows
from tanbr.experiments.dense import DenseModel
from tanbr.files import write_atomically
from tanbr.merge import Moe
from tanbr.tasks.metrics import LabelSpace, figure
from tanbr.tasks.rows import Row
from tanbr.types import Blend, FloatArray, to_jsonable


@dataclass(frozen=True, eq=False)
class Survey:
    """N blends and what they earned."""

    blends: FloatArray  # (N, K); the K one-hot blends first, then the uniform one
    rewards: FloatArray  # (N, V)
    figures: FloatArray  # (N, V) the tasks' own metrics
    rows: int = 1  # held-out rows a task behind each of them
    tasks: tuple[str, ...] = ()
    model_sha256: str = ""  # of the checkpoint; "" where it is not known
    regression: bool = False  # whether its blends were merged by regression

    @property
    def counts(self) -> FloatArray:
        """How many rows stand behind each reward (N, V)."""
        return np.full_like(self.rewards, self.rows)

    @property
    def digest(self) -> str:
        """Tell surveys apart."""
        return hashlib.sha256(self.blends.tobytes() + self.rewards.tobytes()).hexdigest()[:16]

    @property
    def best_fixed(self) -> Blend:
        """The blend with the highest mean reward over the tasks: the best one for ever if mixes favour no task."""
        return self.blends[self.rewards.mean(axis=1).argmax()]

    def stakes(self, alpha: float, *, seed: int = 0, draws: int = 4_000) -> dict[str, float]:
        """Compare, over mixes from Dirichlet(alpha), the best blend per mix with the best fixed and the uniform one."""
        mixes = np.random.default_rng(seed).dirichlet(np.full(self.rewards.shape[1], alpha), draws)
        worth = mixes @ self.rewards.T  # (draws, N)
        K = self.blends.shape[1]
        return {
            "alpha": alpha,
            "best_per_mix": float(worth.max(axis=1).mean()),
            "best_fixed": float(worth.mean(axis=0).max()),
            "uniform": float(worth[:, K].mean()),
        }

    def save(self, path: Path, **about: Any) -> None:
        """Write the survey, with what it is `about`, as JSON."""
        values = {**vars(self), **about}
        write_atomically(path, json.dumps(to_jsonable(values)) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Survey":
        """Read what `save` wrote."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            blends, rewards, figures = (np.array(values[n], dtype=float) for n in ("blends", "rewards", "figures"))
            return cls(
                blends, rewards, figures, rows=int(values.get("rows", 1)),
                tasks=tuple(values.get("tasks", ())), model_sha256=str(values.get("model_sha256", "")),
                regression=bool(values.get("regression", False)),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} holds no survey ({error}); measure it again with `tanbr survey`") from None

    def check(self, moe: Moe, corpus: Corpus, path: Path, *, regression: bool) -> "Survey":
        """Refuse a survey of another checkpoint, of other tasks than these, or of blends merged in another way."""
        names = tuple(task.name for task in corpus.tasks)
        if self.model_sha256 not in ("", moe.fingerprint):
            raise DataError(f"{path} was made with other weights than {moe.path}; measure it again with `tanbr survey`")
        if self.regression != regression:
            how = "by regression" if self.regression else "by averages"
            raise DataError(f"{path} is about blends that were merged {how}; pass a survey of the others")
        if self.tasks not in ((), names) or self.blends.shape[1] != moe.num_experts:
            raise DataError(
                f"{path} is about {', '.join(self.tasks)}, not {', '.join(names)}; pass the data's own survey"
            )
        return self


def candidates(experts: int, *, random: int = 143, seed: int = 0) -> FloatArray:
    """Lay out blends to try (N, K): every expert alone, the uniform blend, pairs, and draws from sparse to even."""
    eye = np.eye(experts)
    pairs = [(eye[i] + eye[j]) / 2 for i in range(experts) for j in range(i)]
    rng = np.random.default_rng(seed)
    draws = [rng.dirichlet(np.full(experts, (0.1, 0.3, 0.5, 1.0, 3.0)[i % 5])) for i in range(random)]
    return np.array([*eye, np.full(experts, 1 / experts), *pairs, *draws])


def survey(
    model: DenseModel,
    rows: Mapping[str, Sequence[Row]],
    *,
    space: LabelSpace,
    blends: FloatArray,
    report: Callable[[int, int], None] | None = None,
) -> Survey:
    """Serve all rows with every blend; `report` hears how many blends are done."""
    everything = [row for task in space.tasks for row in rows[task.name]]
    own = [np.array([row.task == task.name for row in everything]) for task in space.tasks]
    targets = np.array([row.target for row in everything])
    rewards, figures = np.empty((2, len(blends), len(space.tasks)))
    for n, blend in enumerate(blends):
        model.swap(blend)
        answers = space.read(everything, model.answers([row.text for row in everything]))
        rewards[n], counts = space.slot_reward(everything, space.rewards(everything, answers))
        figures[n] = [figure(task, targets[of], answers[of]) for task, of in zip(space.tasks, own, strict=True)]
        if report:
            report(n + 1, len(blends))
    return Survey(blends, rewards, figures, rows=int(counts.min()), tasks=tuple(task.name for task in space.tasks))


def regressed(path: Path) -> Path:
    """Name the survey of blends merged by regression that belongs to another survey."""
    return path.with_stem(f"{path.stem}-regression")


STRETCH = 10  # blends between two saves
SEARCHED_MIXES = 0.3  # α of the mixes for which blends are searched, beside the even one


def survey_to(
    path: Path,
    moe: Moe,
    corpus: Corpus,
    *,
    blends: int,
    rows: int,
    searched: int = 0,
    command: str,
    report: Callable[[int, int], None] | None = None,
) -> Survey:
    """Survey a checkpoint's blends on held rows and save it; interrupted and started again, it goes on.

    The `searched` last of the blends are found by search: for the even mix, and for mixes that favour some tasks.
    """
    model, held = model_for(moe, corpus.space), corpus.first_held(rows)
    about = {"command": command, "data": corpus.name}
    fixed = candidates(moe.num_experts)[: blends - searched]
    partial = path.with_name(f"{path.name}.partial")
    done = _resumed(partial, moe, corpus, fixed, rows)
    found = 0 if done is None else len(done.blends)
    while found < blends:
        if found < len(fixed):
            stretch = survey(model, held, space=corpus.space, blends=fixed[found : found + STRETCH])
            stretch = replace(stretch, model_sha256=moe.fingerprint, regression=moe.grams is not None)
            done = stretch if done is None else _joined(done, stretch)
        else:
            done = _searched(done, model, held, corpus.space, min(STRETCH, blends - found))
        found = len(done.blends)
        done.save(partial, **about)
        if report:
            report(found, blends)
    assert done is not None  # noqa: S101 - at least one blend is asked for
    done.save(path, **about)
    partial.unlink(missing_ok=True)
    return done


def _searched(known: Survey | None, model: DenseModel, rows: Rows, space: LabelSpace, count: int) -> Survey:
    if known is None:
        raise DataError("a search needs surveyed blends to start from; ask for more blends than searched ones")
    rng = np.random.default_rng(len(known.blends))  # the same after an interruption
    V = len(space.tasks)
    mixes = np.array([np.full(V, 1 / V), *rng.dirichlet(np.full(V, SEARCHED_MIXES), 2)])  # a third for the even one
    result = known

    def evaluate(blend: Blend) -> FloatArray:
        nonlocal result
        result = _joined(result, survey(model, rows, space=space, blends=blend[None]))
        return result.rewards[-1]

    search(evaluate, Table(known.blends, known.rewards), mixes=mixes, evaluations=count, rng=rng)
    return result


def _resumed(partial: Path, moe: Moe, corpus: Corpus, fixed: FloatArray, rows: int) -> Survey | None:
    if not partial.exists():
        return None
    done = Survey.load(partial).check(moe, corpus, partial, regression=moe.grams is not None)
    both = min(len(done.blends), len(fixed))
    if done.rows != rows or not np.allclose(done.blends[:both], fixed[:both]):
        raise DataError(f"{partial} belongs to a survey of other blends or rows; delete it to start again")
    return done


def _joined(left: Survey, right: Survey) -> Survey:
    return replace(
        left,
        blends=np.concatenate([left.blends, right.blends]),
        rewards=np.concatenate([left.rewards, right.rewards]),
        figures=np.concatenate([left.figures, right.figures]),
    )
