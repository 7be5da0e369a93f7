"""What blends are worth: the reward of many blends on every task, measured once on held-out rows."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.errors import ConfigError, DataError
from tanbr.files import write_atomically
from tanbr.lab.corpus import Corpus, Rows
from tanbr.merge import Moe
from tanbr.moe.writing import Progress, silent
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.recogniser import Recogniser
from tanbr.serve.dense import DenseModel
from tanbr.tasks.metrics import figure
from tanbr.tasks.rows import Task
from tanbr.types import AnswersBy, FloatArray, to_jsonable

STRETCH = 10  # blends between two saves
TABLES = ("blends", "rewards", "figures")
SPREAD = 143  # random blends laid out: 180 in all for 8 experts


@dataclass(frozen=True, eq=False)
class Survey:
    """N blends and what they earned."""

    blends: FloatArray  # (N, K); the K one-hot blends first, then the uniform one
    rewards: FloatArray  # (N, V)
    figures: FloatArray  # (N, V) the tasks' own metrics
    rows: int = 1  # held-out rows per task behind each of them
    tasks: tuple[str, ...] = ()
    model_sha256: str = ""  # of the checkpoint; "" where it is not known
    method: str = "average"  # how its blends were merged
    answers_by: str = "labels"  # or "posterior"

    @property
    def counts(self) -> FloatArray:
        """How many rows stand behind each reward (N, V)."""
        return np.full_like(self.rewards, self.rows)

    @property
    def digest(self) -> str:
        """Tell surveys apart."""
        return hashlib.sha256(self.blends.tobytes() + self.rewards.tobytes()).hexdigest()[:16]

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
            found = cls(
                blends, rewards, figures, rows=int(values.get("rows", 1)),
                tasks=tuple(values.get("tasks", ())), model_sha256=str(values.get("model_sha256", "")),
                method=str(values.get("method", "average")),
                answers_by=str(values.get("answers_by", "labels")),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} holds no survey ({error}); measure it again with `tanbr survey`") from None
        found._check_numbers(path)
        return found

    def _check_numbers(self, path: Path) -> None:
        """Refuse tables of other shapes, blends outside the simplex and rewards on another scale than [0, 1]."""
        shapes = [table.shape for table in (self.blends, self.rewards, self.figures)]
        if any(len(shape) != 2 for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
            raise DataError(f"{path}: blends, rewards and figures must be tables of equal length (got {shapes})")
        off = np.abs(self.blends.sum(axis=1) - 1.0)
        if not ((self.blends >= 0).all() and (off <= 1e-6).all()):
            raise DataError(f"{path}: a blend lies outside the simplex; weights must be at least 0 and sum to 1")
        odd = self.rewards[(self.rewards < 0) | (self.rewards > 1)]
        if len(odd):
            raise DataError(f"{path}: rewards must lie in [0, 1] (got {odd[0]:g}); divide by the scale they are on")

    def check(self, moe: Moe, tasks: Sequence[Task], path: Path, *, answers_by: str = "labels") -> "Survey":
        """Refuse a survey of another checkpoint, other tasks, or blends that were merged or answered in another way."""
        names = tuple(task.name for task in tasks)
        if self.model_sha256 not in ("", moe.fingerprint):
            raise DataError(f"{path} was made with other weights than {moe.path}; measure it again with `tanbr survey`")
        if self.method != str(moe.method):
            raise DataError(f"{path} is about blends merged by {self.method}; pass a survey of those by {moe.method}")
        if self.answers_by != answers_by:
            raise DataError(f"{path} is about answers by {self.answers_by}; pass a survey of answers by {answers_by}")
        if self.tasks not in ((), names) or self.blends.shape[1] != moe.num_experts:
            raise DataError(
                f"{path} is about {', '.join(self.tasks)}, not {', '.join(names)}; pass the data's own survey"
            )
        return self


def candidates(experts: int) -> FloatArray:
    """Lay out blends to try (N, K): every expert alone, the uniform blend, pairs, and draws from sparse to even."""
    eye = np.eye(experts)
    pairs = [(eye[i] + eye[j]) / 2 for i in range(experts) for j in range(i)]
    rng = np.random.default_rng(0)
    draws = [rng.dirichlet(np.full(experts, (0.1, 0.3, 0.5, 1.0, 3.0)[i % 5])) for i in range(SPREAD)]
    return np.array([*eye, np.full(experts, 1 / experts), *pairs, *draws])


def even_groups(experts: int) -> FloatArray:
    """Lay out the even blends of all groups of experts (N, K): one, all, then two, three and so on."""
    eye = np.eye(experts)
    sizes = (1, experts, *range(2, experts))
    return np.array([eye[list(group)].mean(axis=0) for size in sizes for group in combinations(range(experts), size)])


def survey(
    model: DenseModel,
    rows: Rows,
    *,
    blends: FloatArray,
    recogniser: Recogniser | None = None,
) -> Survey:
    """Serve all rows with every blend, by the posterior of a `recogniser` that has not learned from them, if any."""
    space = model.space
    everything = [row for task in space.tasks for row in rows[task.name]]
    texts = [row.text for row in everything]
    posteriors = None if recogniser is None else recogniser.recognise(texts).posteriors
    own = [np.array([row.task == task.name for row in everything]) for task in space.tasks]
    targets = np.array([row.target for row in everything])
    rewards, figures = np.empty((2, len(blends), len(space.tasks)))
    for n, blend in enumerate(blends):
        model.swap(blend)
        given = model.answers(texts)
        answers = space.read(everything, given if posteriors is None else space.by_posterior(given, posteriors))
        rewards[n], counts = space.slot_reward(everything, space.rewards(everything, answers))
        figures[n] = [figure(task, targets[of], answers[of]) for task, of in zip(space.tasks, own, strict=True)]
    return Survey(
        blends, rewards, figures, rows=int(counts.min()), tasks=tuple(task.name for task in space.tasks),
        model_sha256=model.moe.fingerprint, method=str(model.moe.method),
        answers_by="labels" if recogniser is None else "posterior",
    )  # fmt: skip


def survey_path(path: Path, method: str, *, answers_by: AnswersBy = "labels") -> Path:
    """Name the survey of blends merged by a method, or answered otherwise, that belongs to a survey of averages."""
    parts = [method.replace(":", "-")] * (method != "average") + [answers_by] * (answers_by != "labels")
    return path.with_stem("-".join([path.stem, *parts]))


def survey_to(
    path: Path,
    moe: Moe,
    corpus: Corpus,
    *,
    blends: int,
    rows: int,
    groups: bool = False,
    answers_by: AnswersBy = "labels",
    command: str,
    report: Progress = silent,
) -> Survey:
    """Survey a checkpoint's first candidates (or even `groups` of experts) and save them; a stopped survey goes on."""
    model, held = DenseModel(moe, corpus.space), corpus.first_held(rows)
    about = {"command": command, "data": corpus.name}
    recogniser = None
    if answers_by == "posterior":
        recogniser = corpus.taught_monitor(MonitorConfig(), seed=0, after=rows).snapshot()
    laid_out = (even_groups if groups else candidates)(moe.num_experts)
    if not 0 < blends <= len(laid_out):
        raise ConfigError(f"for {moe.num_experts} experts 1 to {len(laid_out)} blends are laid out (got {blends})")
    laid_out = laid_out[:blends]
    unfinished = path.with_name(f"{path.name}.partial")
    done = _resumed(unfinished, moe, corpus, laid_out, rows, answers_by)
    while done is None or len(done.blends) < blends:
        known = 0 if done is None else len(done.blends)
        new = survey(model, held, blends=laid_out[known : known + STRETCH], recogniser=recogniser)
        if done is not None:
            joined: Any = {name: np.concatenate([getattr(done, name), getattr(new, name)]) for name in TABLES}
            new = replace(done, **joined)
        done = new
        done.save(unfinished, **about)
        report(len(done.blends), blends)
    done.save(path, **about)
    unfinished.unlink(missing_ok=True)
    return done


def _resumed(
    unfinished: Path, moe: Moe, corpus: Corpus, blends: FloatArray, rows: int, answers_by: AnswersBy
) -> Survey | None:
    if not unfinished.exists():
        return None
    done = Survey.load(unfinished).check(moe, corpus.tasks, unfinished, answers_by=answers_by)
    known = len(done.blends)
    if done.rows != rows or known > len(blends) or not np.allclose(done.blends, blends[:known]):
        raise DataError(f"{unfinished} belongs to a survey of other blends or rows; delete it to start again")
    return done
