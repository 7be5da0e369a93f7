"""Practice: blends are tried on logged requests, not on users.

A logged request says more than the reward of what was served. With a label, the answer of any blend has a known
reward; often it has one without a label, too (`known_rewards`). The learner keeps the newest requests of each task
whose outcome is known, and tries on them: every expert alone, which says what expert each task needs; each task's two
best experts, half each; then what the router suggests. All of them are compared with the even blend on the same rows,
so that the noise of hard rows cancels, and the router hears rewards with the error of such pairs. Nothing here answers:
what runs it (a thread of the server, a simulation) asks for an `Exercise`, answers its rows and brings the rewards.
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
MOVES = 0.05  # least chance of a new request to take the place of an old one, so that the log follows its users
ALONE = 48  # of them, how many every expert answers alone: experts that differ by 15 points part at two deviations
ROWS = 96  # requests of one exercise: about as many as a merge costs, at MiniLM's size
FEW = 8  # requests of a task below which nothing is said about its experts
SURE = 2.5  # standard errors by which another expert must be better than the card's: the best of seven that are equal
# is seldom that much better by chance
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
    pair: tuple[int, int, int] | None = None  # a task and its two best experts


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
    card: tuple[int, ...] = ()  # (V,) the expert of each task, as the experts' makers say; empty if they do not
    rows: tuple[Logged, ...] = ()  # at most LOG of a task
    table: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # (n, K + 1) of each expert alone, and even
    seen: tuple[int, ...] = ()  # (V,) requests of each task that the log was offered
    tried: tuple[Tried, ...] = ()
    done: int = 0  # exercises
    suggested: int = 0  # of them, those that the router suggested
    paired: frozenset[tuple[int, int, int]] = frozenset()  # a task and its two best experts, tried half and half

    def logged(self, new: Sequence[Logged]) -> "Practice":
        """Take in requests whose outcome is known: of each task a fair sample, at most LOG, that goes on moving."""
        rows, table = list(self.rows), list(self.table.reshape(-1, self.experts + 1))
        seen, rng = list(self.seen or (0,) * self.tasks), np.random.default_rng(self.done)
        places = [np.flatnonzero(self.of == task).tolist() for task in range(self.tasks)]
        blank = np.full(self.experts + 1, np.nan)
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
        return replace(self, rows=tuple(rows), table=np.array(table).reshape(-1, self.experts + 1), seen=tuple(seen))

    def without(self, expert: int) -> "Practice":
        """Forget what an expert answered: it was replaced."""
        table = self.table.copy()
        table[:, expert] = np.nan
        return replace(self, table=table, paired=frozenset(one for one in self.paired if expert not in one[1:]))

    @cached_property
    def of(self) -> NDArray[np.intp]:
        """The task of each row (n,)."""
        return np.array([row.task for row in self.rows], dtype=np.intp)

    def experts_alone(self) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
        """What each task earns at each expert alone: means and standard errors (V, K), NaN where untried, counts (V,).

        All experts of a task are compared on the same rows.
        """
        mean, error = np.full((2, self.tasks, self.experts), np.nan)
        found = [self._alone(task) for task in range(self.tasks)]
        for task, rows in enumerate(found):
            if n := len(rows):
                mean[task] = rows.mean(axis=0)
                error[task] = np.sqrt((n * rows.var(axis=0) + PAIRS * SPREAD) / (n + PAIRS) / n)
        return mean, error, np.array([len(rows) for rows in found])

    def _alone(self, task: int) -> FloatArray:
        """What a task's rows earn at every expert alone (n, K), those that all have answered."""
        mine = self.table[self.of == task][:, : self.experts]
        return np.asarray(mine[np.isfinite(mine).all(axis=1)])

    def own_experts(self, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """The best expert of each task (V,): the one `before` (V,) stays unless another is surely better.

        A task that was hardly seen has what it had before; if that is nothing, the expert that is best for all others.
        """
        means, _, counts = self.experts_alone()
        enough = counts >= FEW
        if not enough.any():
            return before
        usual = int(means[enough].mean(axis=0).argmax())
        own = np.where(before < 0, usual, before)
        for task in np.flatnonzero(enough).tolist():
            best, old = int(means[task].argmax()), int(before[task])
            if old >= 0 and best != old:
                gain = self._alone(task) @ (np.eye(self.experts)[best] - np.eye(self.experts)[old])
                best = best if gain.mean() > (SURE if old in self.card[task:][:1] else 1.0) * _error(gain) else old
            own[task] = best
        return own

    def next(
        self, router: Any, mix: TaskMix, *, models: int = 1, confusion: FloatArray | None = None
    ) -> Exercise | None:
        """Say what to try next, for a router and the mix (V,) to come; None while there is nothing to try it on."""
        if not self.rows:
            return None
        K, rng = self.experts, np.random.default_rng(self.done)
        if (untold := np.flatnonzero(np.isnan(self.table[:, K]))[::-1]).size:
            return self._exercise(np.full(K, 1.0 / K), untold, "the even blend", K)
        wanted = self._to_test()
        missing = np.isnan(self.table[wanted][:, :K])
        if missing.any() and not (self.done % 2 and self._tested()):
            expert = int(missing.sum(axis=0).argmax())
            return self._exercise(np.eye(K)[expert], wanted[missing[:, expert]], "an expert alone", expert)
        means, _, counts = self.experts_alone()
        for task in np.flatnonzero(counts >= ALONE) if K > 1 else ():
            best, second = np.argsort(-means[task], kind="stable")[:2].tolist()
            pair, rows = (int(task), best, second), rng.permutation(np.flatnonzero(self.of == task))
            if pair not in self.paired:
                half = 0.5 * (np.eye(K)[best] + np.eye(K)[second])
                return replace(self._exercise(half, rows, "a task's two best experts"), pair=pair)
        optimism = OPTIMISM[self.suggested % len(OPTIMISM)]
        panel = router.suggest(mix, models=models, confusion=confusion, optimism=optimism)
        place = self.suggested // len(OPTIMISM) % len(panel.blends)
        own = group_mixes(panel.estimates, Readings.of(mix, confusion))[place]
        why = {None: "the start blend by the experts found", 0.0: "what would be served"}.get(
            optimism, "what may be better"
        )
        return self._exercise(panel.blends[place], self._drawn(own, rng), why)

    def _tested(self) -> bool:
        """Whether something is known of every task's experts, as far as it was seen."""
        counts = self.experts_alone()[2]
        return bool((counts >= np.minimum(np.bincount(self.of, minlength=self.tasks), FEW)).all())

    def _to_test(self) -> NDArray[np.intp]:
        """The newest rows of each task that every expert is to answer alone: as many as are missing from ALONE."""
        of, begun = self.of, np.isfinite(self.table[:, : self.experts])
        found: list[int] = []
        for task in np.unique(of):
            mine = np.flatnonzero(of == task)[::-1]
            some, whole = begun[mine].any(axis=1), begun[mine].all(axis=1)
            more = max(0, ALONE - int(some.sum()))
            found += [*mine[some & ~whole].tolist(), *mine[~some][:more].tolist()]
        return np.array(found, dtype=np.intp)

    def _drawn(self, mix: TaskMix, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw rows by a mix (V,), some of all tasks alike."""
        of = self.of
        held = np.bincount(of, minlength=self.tasks)
        share = ((1.0 - OTHERS) * mix + OTHERS / self.tasks)[of] / held[of]
        count = min(ROWS, len(of))
        return rng.choice(len(of), size=count, replace=False, p=share / share.sum())

    def _exercise(self, blend: Blend, rows: NDArray[np.intp], why: str, column: int = -1) -> Exercise:
        return Exercise(blend, tuple(self.rows[i] for i in rows[:ROWS]), why, column)

    def learned(self, exercise: Exercise, rewards: FloatArray, *, router: Any, slot: int) -> "Practice":
        """Take in what an exercise's rows have earned (n,), and tell the router."""
        place = {row.id: i for i, row in enumerate(self.rows)}
        here = np.array([place.get(row.id, -1) for row in exercise.rows], dtype=np.intp)  # some are gone by now
        rewards, rows = rewards[here >= 0], here[here >= 0]
        table = self.table.copy()
        if exercise.column >= 0:
            table[rows, exercise.column] = rewards
        pair = {exercise.pair} if exercise.pair else set()
        suggested = self.suggested + (exercise.column < 0 and exercise.pair is None)
        after = replace(self, table=table, done=self.done + 1, suggested=suggested, paired=self.paired | pair)
        if exercise.column == self.experts:  # what was served is paired with it now, at no cost
            served = {row.blend.tobytes(): row.blend for row in exercise.rows if row.blend is not None}
            for key, blend in served.items():
                mine = [i for i in rows if (own := self.rows[i].blend) is not None and own.tobytes() == key]
                gain = np.array([self.rows[i].reward for i in mine]) - table[mine, self.experts]
                router.practised(blend, *after._of_tasks(gain, self.of[mine]))
        if not len(rows) or exercise.column == self.experts:
            return after
        gain = rewards - table[rows, self.experts]
        router.practised(exercise.blend, *after._of_tasks(gain, self.of[rows]))
        if exercise.column >= 0:
            before = router.own_experts
            own = after.own_experts(before)
            if (own >= 0).all() and (own != before).any():
                router.assign(own)
        found = Tried(slot, exercise.blend, exercise.why, len(gain), float(gain.mean()), _error(gain))
        return replace(after, tried=(*after.tried, found)[-SHOWN:])

    def _of_tasks(self, gain: FloatArray, of: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Each task's mean gain (V,), NaN where unseen, and its standard error (V,), of the gains of rows (n,)."""
        counts = np.bincount(of, minlength=self.tasks)
        mean = np.bincount(of, weights=gain, minlength=self.tasks) / np.maximum(counts, 1)
        squares = np.bincount(of, weights=gain * gain, minlength=self.tasks)
        variance = (squares + PAIRS * SPREAD) / (counts + PAIRS)
        return np.where(counts > 0, mean, np.nan), np.sqrt(variance / np.maximum(counts, 1))


def _error(gain: FloatArray) -> float:
    """Standard error of the mean of paired differences (n,); a few that are all equal are not taken for sure."""
    return float(np.sqrt((gain @ gain + PAIRS * SPREAD) / (len(gain) + PAIRS) / len(gain)))


def decides(task: Task, reward: float, label: float | None) -> bool:
    """Whether a request says what other answers would have earned."""
    return label is not None or (not task.graded and not task.written and reward in (0.0, 1.0))


def known_rewards(
    space: LabelSpace, rows: Sequence[Logged], answers: Sequence[Answer], *, by_posterior: bool
) -> FloatArray:
    """What other answers to logged requests would have earned (n,), read as the server reads them.

    With a label, what the task says. Without one: the answer that was given has its reward; one that was right makes
    all others wrong; of two labels, one that was wrong makes the other right. Of more labels, each of the others is
    taken to be right as often as chance has it.
    """
    if by_posterior:
        answers = space.by_posterior(answers, np.array([row.posterior for row in rows]))
    meant = [Row(space.tasks[row.task].name, row.text, row.label or 0.0) for row in rows]
    read = space.read(meant, answers)
    earned = space.rewards(meant, read)
    for i, (row, answer) in enumerate(zip(rows, read, strict=True)):
        if row.label is not None:
            continue
        earned[i] = 0.0
        if answer == row.answer:
            earned[i] = row.reward
        elif row.reward == 0.0 and answer >= 0:
            earned[i] = 1.0 / max(len(space.tasks[row.task].labels) - (row.answer >= 0), 1)
    return earned
