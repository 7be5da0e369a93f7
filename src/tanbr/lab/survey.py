"""What blends are worth: the reward of many blends on every task, measured once on held-out rows.

It finds the best fixed blend (a strong rival) and the best blend for a known mix (an upper bound), and it says
whether a checkpoint makes the problem real at all. A survey may be enlarged one blend at a time
(`proposed`); every figure is measured.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from tanbr.errors import ConfigError, DataError
from tanbr.lab.corpus import Corpus, Rows
from tanbr.lab.rivals.vector_gp import NOISE, VARIANCE, covariance
from tanbr.merge import Moe
from tanbr.moe.writing import Progress, silent
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.recogniser import Recogniser
from tanbr.serve.dense import DenseModel
from tanbr.serve.survey import Survey
from tanbr.tasks.metrics import figure
from tanbr.types import AnswersBy, Blend, FloatArray, TaskMix

STRETCH = 10  # blends between two saves
SPREAD = 143  # random blends laid out: 180 in all for 8 experts
SEARCHED_MIXES = 0.3  # α of the mixes for which blends are searched, beside the even one
STEPS = (0.4, 0.2, 0.1, 0.05)  # of weight moved from one expert to another in a search
INCUMBENTS, DRAWS = 3, 200  # best known blends that are moved from, and random blends beside them
CURIOSITY = 1.0  # standard deviations added to what the Gaussian process expects


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
    report: Progress = silent,
) -> Survey:
    """Serve all rows with every blend; `report` hears how many blends are done.

    With a `recogniser`, answers are by the posterior; it must not have learned from these rows.
    """
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
        report(n + 1, len(blends))
    names = tuple(task.name for task in space.tasks)
    answers_by = "labels" if recogniser is None else "posterior"
    return Survey(blends, rewards, figures, rows=int(counts.min()), tasks=names, answers_by=answers_by)


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
    searched: int = 0,
    groups: bool = False,
    answers_by: AnswersBy = "labels",
    command: str,
    report: Progress = silent,
) -> Survey:
    """Survey a checkpoint's blends on held rows and save it; interrupted and started again, it goes on.

    The `searched` last of the blends are found by search: for the even mix, and for mixes that favour some tasks.
    The others are `candidates`, or with `groups` the even blends of groups of experts, the smallest groups first.
    """
    model, held = DenseModel(moe, corpus.space), corpus.first_held(rows)
    about = {"command": command, "data": corpus.name}
    recogniser = None
    if answers_by == "posterior":
        recogniser = corpus.taught_monitor(MonitorConfig(), seed=0, after=rows).snapshot()
    measure = partial(survey, model, held, recogniser=recogniser)
    laid_out = (even_groups if groups else candidates)(moe.num_experts)
    if not 0 < blends - searched <= len(laid_out):
        raise ConfigError(
            f"for {moe.num_experts} experts 1 to {len(laid_out)} blends are laid out, beside the searched ones "
            f"(got {blends} blends, {searched} of them searched)"
        )
    fixed = laid_out[: blends - searched]
    unfinished = path.with_name(f"{path.name}.partial")
    done = _resumed(unfinished, moe, corpus, fixed, rows, answers_by)
    if done is None:
        done = replace(measure(blends=fixed[:STRETCH]), model_sha256=moe.fingerprint, method=str(moe.method))
    while (found := len(done.blends)) < blends:
        done.save(unfinished, **about)
        report(found, blends)
        if found < len(fixed):
            done = _joined(done, measure(blends=fixed[found : found + STRETCH]))
        else:
            done = _searched(done, measure, min(STRETCH, blends - found))
    done.save(path, **about)
    report(blends, blends)
    unfinished.unlink(missing_ok=True)
    return done


def _searched(known: Survey, measure: Callable[..., Survey], count: int) -> Survey:
    """Measure `count` more blends, proposed for the even mix and for two others in turn."""
    rng = np.random.default_rng(len(known.blends))  # the same after an interruption
    V = known.rewards.shape[1]
    mixes = np.array([np.full(V, 1 / V), *rng.dirichlet(np.full(V, SEARCHED_MIXES), 2)])
    for number in range(count):
        known = _joined(known, measure(blends=proposed(known, mixes[number % len(mixes)], rng)[None]))
    return known


def proposed(known: Survey, mix: TaskMix, rng: np.random.Generator) -> Blend:
    """Propose the next blend to measure for a mix (V,): near the best known, where a Gaussian process expects most."""
    K = known.blends.shape[1]
    best = known.blends[np.argsort(-(known.rewards @ mix))[:INCUMBENTS]]
    moves = [
        start + np.minimum(step, start[source]) * (np.eye(K)[target] - np.eye(K)[source])
        for start in best
        for step in STEPS
        for source in np.flatnonzero(start)
        for target in range(K)
        if source != target
    ]
    means = [(one + other) / 2 for i, one in enumerate(best) for other in best[:i]]
    laid_out = np.array([*moves, *means, *rng.dirichlet(np.full(K, 0.5), DRAWS)])
    away = np.abs(laid_out[:, None] - known.blends).max(axis=2).min(axis=1)
    new = laid_out[away > 1e-6]  # whose reward is not known
    mean, deviation = expected(new, known)
    chosen: Blend = new[(mean @ mix + CURIOSITY * np.linalg.norm(mix) * deviation).argmax()]
    return chosen


def expected(blends: FloatArray, known: Survey) -> tuple[FloatArray, FloatArray]:
    """Predict the rewards of blends (n, K) from those that are known: mean (n, V) and standard deviation (n,)."""
    noise = NOISE**2 * np.eye(len(known.blends))
    inverse = np.linalg.inv(covariance(known.blends, known.blends) + noise)
    centre, cross = known.rewards.mean(axis=0), covariance(blends, known.blends)
    explained = np.einsum("nt,tu,nu->n", cross, inverse, cross)
    return centre + cross @ (inverse @ (known.rewards - centre)), np.sqrt(np.maximum(VARIANCE - explained, 1e-12))


def _resumed(
    unfinished: Path, moe: Moe, corpus: Corpus, fixed: FloatArray, rows: int, answers_by: AnswersBy
) -> Survey | None:
    if not unfinished.exists():
        return None
    done = Survey.load(unfinished).check(moe, corpus.tasks, unfinished, answers_by=answers_by)
    both = min(len(done.blends), len(fixed))
    if done.rows != rows or not np.allclose(done.blends[:both], fixed[:both]):
        raise DataError(f"{unfinished} belongs to a survey of other blends or rows; delete it to start again")
    return done


def _joined(left: Survey, right: Survey) -> Survey:
    return replace(
        left,
        blends=np.concatenate([left.blends, right.blends]),
        rewards=np.concatenate([left.rewards, right.rewards]),
        figures=np.concatenate([left.figures, right.figures]),
    )
