"""What blends are worth: the reward of many blends on every task, measured once on held-out rows.

It finds the best fixed blend (a strong rival) and the best blend for a known mix (an upper bound), and it says
whether a checkpoint makes the problem real at all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tanbr.baselines.search import Table, search
from tanbr.baselines.survey import Survey
from tanbr.errors import DataError
from tanbr.experiments.answers import model_for
from tanbr.experiments.corpus import Corpus, Rows
from tanbr.experiments.dense import DenseModel
from tanbr.merge import Moe
from tanbr.tasks.metrics import LabelSpace, figure
from tanbr.tasks.rows import Row
from tanbr.types import Blend, FloatArray


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


def survey_path(path: Path, method: str) -> Path:
    """Name the survey of blends merged by a method that belongs to a survey of averages."""
    return path if method == "average" else path.with_stem(f"{path.stem}-{method.replace(':', '-')}")


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
            stretch = replace(stretch, model_sha256=moe.fingerprint, method=str(moe.method))
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
    done = Survey.load(partial).check(moe, corpus.tasks, partial)
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
