"""Practice: blends are tried on logged requests, not on users.

With a label, the answer of any blend to a logged request has a known reward; often it has one without a label, too
(`known_rewards`). The learner keeps requests of each task whose outcome is known, and tries on them: every expert
alone, which says what expert each task needs, and what the router suggests. All of them are compared with the even
blend on the same rows, so that the noise of hard rows cancels. What runs it (a thread of the server, a simulation) asks
for an `Exercise`, answers its rows and brings the rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanbr.router.panel import Readings, group_mixes
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.tasks.rows import Row, Task
from tanbr.types import Blend, FloatArray, TaskMix, Text

LOG = 256  # requests of each task that are kept: their mean is sure to 3 points
READY = 24  # exercises before the router hears of any: what is served teaches it until then, and goes on where a server
# has no time to practise
MOVES = 0.05  # least chance of a new request to take the place of an old one, so that the log follows its users
FIRST = 96  # of them, how many every expert answers alone
ALONE = 240  # and how many those do that may be the best after that: on a MiniLM-MoE 96 rows leave QQP's expert, which
# earns 2 points more than the even blend, open one time in three, and 240 one time in ten
UNLIKELY = 0.02  # how likely an expert must be to be a task's best, or it is asked no more
ROWS = 96  # requests of one exercise: about as many as a merge costs, at MiniLM's size
FEW = 8  # requests of a task below which nothing is said about its experts
BELIEVED = 0.95  # how likely a card is to be right about a task before anything was tried: most are
DRAWS = 512  # of the rows, by which it is found how often an expert is a task's best
MOVED = 0.05  # how much such a share must change before the router hears of it: it costs it as much as a turn
PAIRS, SPREAD = 4.0, 0.15  # pairs that a first guess at their variance is worth, and that guess
OPTIMISM = (None, 0.0, 1.0, 2.0)  # what is tried in turn: the baseline, what would be served, and what may be better
OTHERS = 0.2  # share of an exercise's rows that are of all tasks alike: mixes change
SHOWN = 50  # exercises that are remembered for people


@dataclass(frozen=True, eq=False)
class Logged:
    """An answered request whose outcome is known."""

    id: bytes
    text: Text
    task: int
    posterior: FloatArray  # (V,) by the mix of its slot, as it was answered with
    reward: float  # of what was answered
    answer: float  # that: the number of a label (−1: of another task), or a score
    label: float | None = None  # the true one, if somebody said it
    blend: Blend | None = None  # (K,) that answered it


@dataclass(frozen=True, eq=False)
class Exercise:
    """A blend to try on some rows."""

    blend: Blend  # (K,)
    rows: tuple[Logged, ...]
    why: str
    column: int = -1  # of the table: an expert alone, or K for the even blend


@dataclass(frozen=True, eq=False)
class Tried:
    """What an exercise found, for people."""

    slot: int
    blend: Blend  # (K,)
    why: str
    rows: int
    gain: float  # over the even blend on the same rows
    error: float  # standard


@dataclass(frozen=True, eq=False)
class Practice:
    """The log, and what was found on it."""

    experts: int
    tasks: int
    believed: FloatArray | None = None  # (V, K) what is said of tasks and experts: by a card, or by practice of earlier
    rows: tuple[Logged, ...] = ()  # at most LOG of a task
    table: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # (n, K + 2) the chance of each expert alone to
    # be right, that of the even blend, and its reward
    seen: tuple[int, ...] = ()  # (V,) requests of each task that the log was offered
    tried: tuple[Tried, ...] = ()
    done: int = 0  # exercises
    suggested: int = 0  # of them, those that the router suggested
    own: FloatArray | None = None  # (V, K) how likely each expert is to be a task's own, as the router was told
    untold: tuple[tuple[Blend, FloatArray, FloatArray], ...] = ()  # blends, gains (V,) and errors (V,), until READY

    def logged(self, new: Sequence[Logged]) -> "Practice":
        """Take in requests whose outcome is known: of each task a fair sample, at most LOG, that goes on moving."""
        rows, table = list(self.rows), list(self.table.reshape(-1, self.experts + 2))
        seen, rng = list(self.seen or (0,) * self.tasks), np.random.default_rng(self.done)
        places = [np.flatnonzero(self.of == task).tolist() for task in range(self.tasks)]
        blank = np.full(self.experts + 2, np.nan)
        for row in new:
            mine = places[row.task]
            seen[row.task] += 1
            if len(mine) < LOG:
                mine.append(len(rows))
                rows.append(row)
                table.append(blank)
            elif rng.random() < max(LOG / seen[row.task], MOVES):
                place = mine[rng.integers(LOG)]
                rows[place], table[place] = row, blank
        return replace(self, rows=tuple(rows), table=np.array(table).reshape(-1, self.experts + 2), seen=tuple(seen))

    @cached_property
    def of(self) -> NDArray[np.intp]:
        """The task of each row (n,)."""
        return np.array([row.task for row in self.rows], dtype=np.intp)

    def experts_alone(self) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
        """How likely each expert alone is to be right: mean and error (V, K), NaN where untried, and counts (V,).

        The counts are of the rows that all experts have answered.
        """
        K = self.experts
        rows = self.table.reshape(-1, K + 2)[:, :K]
        mean, error = np.full((2, self.tasks, K), np.nan)
        for task, expert in np.ndindex(self.tasks, K):
            mine = rows[self.of == task, expert]
            mine = mine[np.isfinite(mine)]
            if n := len(mine):
                mean[task, expert] = mine.mean()
                error[task, expert] = np.sqrt((n * mine.var() + PAIRS * SPREAD) / (n + PAIRS) / n)
        return mean, error, np.bincount(self.of[np.isfinite(rows).all(axis=1)], minlength=self.tasks)

    @cached_property
    def best(self) -> FloatArray:
        """How often each expert is a task's best, and the even blend last: (V, K + 1), each row sums to 1.

        It is counted over rows drawn anew from those that all have answered. Those that may be best after the first
        rows are counted again on all the rows that they have answered.
        """
        K = self.experts
        table = self.table.reshape(-1, K + 2)[:, : K + 1]
        found: FloatArray = np.full((self.tasks, K + 1), 1.0 / (K + 1))
        for task in range(self.tasks):
            rows, left = table[self.of == task], np.ones(K + 1, dtype=np.bool_)
            for _ in range(2):
                answered = rows[np.isfinite(rows[:, left]).all(axis=1)][:, left]
                if not len(answered):
                    break
                found[task, left] = found[task, left].sum() * _best(answered, np.random.default_rng(task))
                if len(answered) < FIRST:
                    break
                left = found[task] >= UNLIKELY
        return found

    def own_experts(self) -> FloatArray:
        """How likely each expert is to be a task's own (V, K): what is believed, and how often it is the best.

        The even blend takes part, too: its share is that of all alike.
        """
        K = self.experts
        known: FloatArray = np.full((self.tasks, K + 1), 1.0 / (K + 1))
        if self.believed is not None:
            known = (1.0 - BELIEVED) * known + np.pad(BELIEVED * self.believed, ((0, 0), (0, 1)))
        likely = known * self.best
        likely /= likely.sum(axis=1, keepdims=True)
        return np.asarray(likely[:, :K] + likely[:, K:] / K)

    def next(self, router: Any, mix: TaskMix, *, models: int = 1, confusion: FloatArray | None = None) -> Exercise:
        """Say what to try next, for a router and the mix (V,) to come; there must be rows to try it on."""
        K, rng = self.experts, np.random.default_rng(self.done)
        if (untold := np.flatnonzero(np.isnan(self.table[:, K + 1]))[::-1]).size:
            return self._exercise(np.full(K, 1.0 / K), untold, "the even blend", K)
        missing = self._to_answer()
        if missing.any() and not (self.done % 2 and self._tested()):
            expert = int(missing.sum(axis=0).argmax())
            return self._exercise(
                np.eye(K)[expert], np.flatnonzero(missing[:, expert])[::-1], "an expert alone", expert
            )
        optimism = OPTIMISM[self.suggested % len(OPTIMISM)]
        readings = Readings.of(mix, confusion)
        panel = router.suggest(readings, models=models, optimism=optimism)
        place = self.suggested // len(OPTIMISM) % len(panel.blends)
        own = group_mixes(panel.estimates, readings)[place]
        why = {None: "the start blend by the experts found", 0.0: "what would be served"}
        return self._exercise(panel.blends[place], self._drawn(own, rng), why.get(optimism, "what may be better"))

    def _tested(self) -> bool:
        """Whether something is known of every task's experts, as far as it was seen."""
        counts = self.experts_alone()[2]
        return bool((counts >= np.minimum(np.bincount(self.of, minlength=self.tasks), FEW)).all())

    def _to_answer(self) -> NDArray[np.bool_]:
        """Which rows each expert is to answer alone (n, K): all experts the first of a task, the likely ones more."""
        of, answered = self.of, np.isfinite(self.table[:, : self.experts])
        missing = np.zeros_like(answered)
        for task in np.unique(of):
            mine = np.flatnonzero(of == task)[::-1]  # the newest first, and before them those that were begun
            whole, likely = answered[mine].all(axis=1), self.best[task] >= UNLIKELY
            for count, asked in ((FIRST, np.ones_like(likely)), (ALONE, likely)):
                asked = asked[: self.experts]
                rows = mine[np.argsort(~answered[mine][:, asked].any(axis=1), kind="stable")][:count]
                missing[np.ix_(rows, asked)] |= ~answered[np.ix_(rows, asked)]
                if whole.sum() < min(FIRST, len(mine)) or likely.sum() < 2:
                    break
        return missing

    def _drawn(self, mix: TaskMix, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw rows by a mix (V,), some of all tasks alike."""
        of = self.of
        held = np.bincount(of, minlength=self.tasks)
        share = ((1.0 - OTHERS) * mix + OTHERS / self.tasks)[of] / held[of]
        count = min(ROWS, len(of))
        return rng.choice(len(of), size=count, replace=False, p=share / share.sum())

    def _exercise(self, blend: Blend, rows: NDArray[np.intp], why: str, column: int = -1) -> Exercise:
        return Exercise(blend, tuple(self.rows[i] for i in rows[:ROWS]), why, column)

    def learned(self, exercise: Exercise, earned: FloatArray, *, router: Any, slot: int) -> "Practice":
        """Take in what an exercise's rows have earned, and may have (2, n), and tell the router."""
        place = {row.id: i for i, row in enumerate(self.rows)}
        here = np.array([place.get(row.id, -1) for row in exercise.rows], dtype=np.intp)  # some are gone by now
        (rewards, chances), rows, K = earned[:, here >= 0], here[here >= 0], self.experts
        table = self.table.copy()
        if exercise.column >= 0:
            table[rows, exercise.column] = chances
        suggested = self.suggested + (exercise.column < 0)
        after = replace(self, table=table, done=self.done + 1, suggested=suggested)
        told = list(self.untold)
        if exercise.column == K:
            table[rows, K + 1] = rewards  # what was served is paired with it now, at no cost
            served = {row.blend.tobytes(): row.blend for row in exercise.rows if row.blend is not None}
            for key, blend in served.items():
                mine = [i for i in rows if (own := self.rows[i].blend) is not None and own.tobytes() == key]
                gain = np.array([self.rows[i].reward for i in mine]) - table[mine, K + 1]
                told.append((blend, *after._of_tasks(gain, self.of[mine])))
        elif len(rows):
            gain = rewards - table[rows, K + 1]
            told.append((exercise.blend, *after._of_tasks(gain, self.of[rows])))
            found = Tried(slot, exercise.blend, exercise.why, len(gain), float(gain.mean()), _error(gain))
            after = replace(after, tried=(*after.tried, found)[-SHOWN:])
        if after.done < READY and not router.known.practised:
            return replace(after, untold=tuple(told))
        for one in told:
            router.practised(*one)
        own = after.own_experts()
        if np.abs(own - (0.0 if after.own is None else after.own)).max() >= MOVED:
            router.assign(own)
            after = replace(after, own=own)
        return replace(after, untold=())

    def _of_tasks(self, gain: FloatArray, of: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Each task's mean gain (V,), NaN where unseen, and its standard error (V,), of the gains of rows (n,)."""
        counts = np.bincount(of, minlength=self.tasks)
        mean = np.bincount(of, weights=gain, minlength=self.tasks) / np.maximum(counts, 1)
        squares = np.bincount(of, weights=gain * gain, minlength=self.tasks)
        variance = (squares + PAIRS * SPREAD) / (counts + PAIRS)
        return np.where(counts > 0, mean, np.nan), np.sqrt(variance / np.maximum(counts, 1))


def _best(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    """How often each column of rows (n, m) has the highest mean, over rows drawn anew: (m,), none of them 0."""
    n, m = rows.shape
    drawn = rng.dirichlet(np.ones(n), DRAWS) @ rows
    drawn += rng.normal(0.0, np.sqrt(PAIRS * SPREAD / (n + PAIRS) / n), drawn.shape)
    return np.asarray((np.bincount(drawn.argmax(axis=1), minlength=m) + 0.5) / (DRAWS + 0.5 * m))


def _error(gain: FloatArray) -> float:
    """Standard error of the mean of paired differences (n,); a few that are all equal are not taken for sure."""
    return float(np.sqrt((gain @ gain + PAIRS * SPREAD) / (len(gain) + PAIRS) / len(gain)))


def decides(task: Task, reward: float, label: float | None) -> bool:
    """Whether a request says what other answers would have earned."""
    return label is not None or (not task.graded and not task.written and reward in (0.0, 1.0))


def known_rewards(
    space: LabelSpace, rows: Sequence[Logged], answers: Sequence[Answer], *, by_posterior: bool
) -> FloatArray:
    """What other answers to logged requests would have earned, read as the server reads them, and what may be: (2, n).

    The second row is the expected reward of a label drawn by its probability, which says more of an expert than right
    or wrong does. Scores and written answers have their reward there.
    """
    logits, meant = answers, [Row(space.tasks[row.task].name, row.text, row.label or 0.0) for row in rows]
    if by_posterior:
        answers = space.by_posterior(answers, np.array([row.posterior for row in rows]))
    read = space.read(meant, answers)
    earned = np.tile(space.rewards(meant, read), (2, 1))
    for i, row in enumerate(rows):
        task, given = space.tasks[row.task], logits[i]
        if task.graded or task.written:
            continue
        worth = _worth(row, len(task.labels))
        earned[:, i] = worth[int(read[i])] if read[i] >= 0 else 0.0
        if not isinstance(given, str):
            scores = np.asarray(given, dtype=np.float64)[[space.columns.index(label) for label in task.labels]]
            chances = np.exp(scores - scores.max())
            earned[1, i] = chances @ worth / chances.sum()
    return earned


def _worth(row: Logged, labels: int) -> FloatArray:
    """What each of a task's labels would earn (n,): of those that may be right, each is as likely."""
    right = np.arange(labels) == (row.answer if row.label is None else row.label)
    if row.label is None and row.reward == 0.0:
        right = ~right
    return right / max(int(right.sum()), 1)
