"""What blends are worth: the reward of many blends on every task, measured once on held-out rows.

It finds the best fixed blend (a strong rival) and the best blend for a known mix (an upper bound), and it says
whether a checkpoint makes the problem real at all. A survey may be enlarged by `search`, one blend at a time: near the
best known for a mix, where a Gaussian process fitted to the table expects most. Every figure is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from tanbr.errors import ConfigError, DataError, InputError
from tanbr.lab.answers import DenseModel
from tanbr.lab.corpus import Corpus, Rows
from tanbr.lab.rivals.vector_gp import NOISE, VARIANCE, covariance
from tanbr.merge import Moe
from tanbr.monitor.config import MonitorConfig
from tanbr.monitor.recogniser import Recogniser
from tanbr.router.simplex import keep_largest
from tanbr.serve.survey import Survey
from tanbr.tasks.answering import by_posterior
from tanbr.tasks.metrics import figure
from tanbr.types import AnswersBy, Blend, FloatArray, Reward, as_blend, as_reward, as_task_mix

Evaluate: TypeAlias = Callable[[Blend], Reward]  # the rewards (V,) of a blend (K,) on held-out rows
STEPS = (0.4, 0.2, 0.1, 0.05)  # of weight moved from one expert to another
INCUMBENTS, DRAWS = 3, 200  # best known blends that are moved from, and random blends beside them
CURIOSITY = 1.0  # standard deviations added to what the process expects


@dataclass(frozen=True, eq=False)
class Table:
    """Blends and their measured rewards."""

    blends: FloatArray  # (N, K)
    rewards: FloatArray  # (N, V)

    def __post_init__(self) -> None:
        fits = self.blends.ndim == self.rewards.ndim == 2 and 0 < len(self.blends) == len(self.rewards)
        if not fits or not np.isfinite(self.rewards).all():
            raise InputError(
                f"a table needs blends (N, K) and finite rewards (N, V) (got {self.blends.shape}, {self.rewards.shape})"
            )

    @cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(np.linalg.inv(covariance(self.blends, self.blends) + NOISE**2 * np.eye(len(self.blends))))

    def expected(self, blends: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict the rewards of blends (n, K): mean (n, V) and standard deviation (n,)."""
        centre = self.rewards.mean(axis=0)
        cross = covariance(blends, self.blends)
        explained = np.einsum("nt,tu,nu->n", cross, self._inverse, cross)
        mean = centre + cross @ (self._inverse @ (self.rewards - centre))
        return mean, np.sqrt(np.maximum(VARIANCE - explained, 1e-12))

    def best_for(self, mix: ArrayLike) -> Blend:
        """Find the blend with the highest measured reward ψᵀr for a mix (V,)."""
        return self.blends[(self.rewards @ as_task_mix(mix, tasks=self.rewards.shape[1])).argmax()]

    def with_row(self, blend: Blend, reward: Reward) -> "Table":
        """Add a blend and its reward."""
        return Table(np.vstack([self.blends, blend]), np.vstack([self.rewards, reward]))


def search(
    evaluate: Evaluate,
    table: Table,
    *,
    mixes: ArrayLike,
    evaluations: int,
    rng: np.random.Generator,
    max_active: int | None = None,
) -> Table:
    """Evaluate more blends, each for the next of the mixes (M, V) in turn; one mix for the best fixed blend."""
    K, V = table.blends.shape[1], table.rewards.shape[1]
    psis = [as_task_mix(mix, tasks=V) for mix in np.atleast_2d(np.array(mixes, dtype=np.float64))]
    for number in range(evaluations):
        psi = psis[number % len(psis)]
        candidates = _unknown(keep_largest(_near(table, psi, rng), max_active or K), table)
        mean, deviation = table.expected(candidates)
        best = (mean @ psi + CURIOSITY * np.linalg.norm(psi) * deviation).argmax()
        blend = as_blend(candidates[best], experts=K, max_active=max_active)
        table = table.with_row(blend, as_reward(evaluate(blend), tasks=V))
    return table


def _near(table: Table, psi: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Lay out candidates (n, K): weight moved between two experts of the best known blends, their means, and draws."""
    K = table.blends.shape[1]
    best = table.blends[np.argsort(-(table.rewards @ psi))[:INCUMBENTS]]
    moves = [
        start + np.minimum(step, start[source]) * (np.eye(K)[target] - np.eye(K)[source])
        for start in best
        for step in STEPS
        for source in np.flatnonzero(start)
        for target in range(K)
        if source != target
    ]
    means = [(one + other) / 2 for i, one in enumerate(best) for other in best[:i]]
    return np.array([*moves, *means, *rng.dirichlet(np.full(K, 0.5), DRAWS)])


def _unknown(candidates: FloatArray, table: Table) -> FloatArray:
    """Leave out the candidates whose reward is known."""
    away = np.abs(candidates[:, None] - table.blends).max(axis=2).min(axis=1)
    return candidates[away > 1e-6]


def candidates(experts: int, *, random: int = 143, seed: int = 0) -> FloatArray:
    """Lay out blends to try (N, K): every expert alone, the uniform blend, pairs, and draws from sparse to even."""
    eye = np.eye(experts)
    pairs = [(eye[i] + eye[j]) / 2 for i in range(experts) for j in range(i)]
    rng = np.random.default_rng(seed)
    draws = [rng.dirichlet(np.full(experts, (0.1, 0.3, 0.5, 1.0, 3.0)[i % 5])) for i in range(random)]
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
    report: Callable[[int, int], None] | None = None,
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
        answers = space.read(everything, given if posteriors is None else by_posterior(space, given, posteriors))
        rewards[n], counts = space.slot_reward(everything, space.rewards(everything, answers))
        figures[n] = [figure(task, targets[of], answers[of]) for task, of in zip(space.tasks, own, strict=True)]
        if report:
            report(n + 1, len(blends))
    names = tuple(task.name for task in space.tasks)
    answers_by = "labels" if recogniser is None else "posterior"
    return Survey(blends, rewards, figures, rows=int(counts.min()), tasks=names, answers_by=answers_by)


def survey_path(path: Path, method: str, *, answers_by: AnswersBy = "labels") -> Path:
    """Name the survey of blends merged by a method, or answered otherwise, that belongs to a survey of averages."""
    parts = [method.replace(":", "-")] * (method != "average") + [answers_by] * (answers_by != "labels")
    return path.with_stem("-".join([path.stem, *parts]))


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
    groups: bool = False,
    answers_by: AnswersBy = "labels",
    command: str,
    report: Callable[[int, int], None] | None = None,
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
    if blends - searched > len(laid_out):
        raise ConfigError(
            f"for {moe.num_experts} experts at most {len(laid_out)} blends are laid out, beside the searched ones "
            f"(got {blends} blends, {searched} of them searched)"
        )
    fixed = laid_out[: blends - searched]
    unfinished = path.with_name(f"{path.name}.partial")
    done = _resumed(unfinished, moe, corpus, fixed, rows, answers_by)
    found = 0 if done is None else len(done.blends)
    while found < blends:
        if found < len(fixed):
            stretch = measure(blends=fixed[found : found + STRETCH])
            stretch = replace(stretch, model_sha256=moe.fingerprint, method=str(moe.method))
            done = stretch if done is None else _joined(done, stretch)
        else:
            done = _searched(done, measure, min(STRETCH, blends - found))
        found = len(done.blends)
        done.save(unfinished, **about)
        if report:
            report(found, blends)
    assert done is not None  # noqa: S101 - at least one blend is asked for
    done.save(path, **about)
    unfinished.unlink(missing_ok=True)
    return done


def _searched(known: Survey | None, measure: Callable[..., Survey], count: int) -> Survey:
    if known is None:
        raise DataError("a search needs surveyed blends to start from; ask for more blends than searched ones")
    rng = np.random.default_rng(len(known.blends))  # the same after an interruption
    V = known.rewards.shape[1]
    mixes = np.array([np.full(V, 1 / V), *rng.dirichlet(np.full(V, SEARCHED_MIXES), 2)])  # a third for the even one
    result = known

    def evaluate(blend: Blend) -> FloatArray:
        nonlocal result
        result = _joined(result, measure(blends=blend[None]))
        return result.rewards[-1]

    search(evaluate, Table(known.blends, known.rewards), mixes=mixes, evaluations=count, rng=rng)
    return result


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
