"""What blends are worth: the reward of many blends on every task, measured once on held-out rows."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from tanbr.errors import ConfigError, DataError
from tanbr.lab.corpus import Corpus, Rows
from tanbr.merge import Moe
from tanbr.moe.writing import Progress, silent
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.recogniser import Recogniser
from tanbr.serve.dense import DenseModel
from tanbr.serve.survey import Survey
from tanbr.tasks.metrics import figure
from tanbr.types import AnswersBy, FloatArray

STRETCH = 10  # blends between two saves
TABLES = ("blends", "rewards", "figures")
SPREAD = 143  # random blends laid out: 180 in all for 8 experts


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
