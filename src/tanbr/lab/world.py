"""A simulated world: labelled rows for traffic, a model in this process, and the server's loop and rules for credit.

Tags are seen by the scorer alone. A client sends back a label, which names its task, or only a reward; either may be
late.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tanbr.errors import InputError, TanbrError
from tanbr.loop.choose import StartBlend
from tanbr.loop.config import LoopConfig
from tanbr.loop.guard import Probes
from tanbr.loop.learner import Learner, Rules, exercise, observe, practised
from tanbr.loop.practice import Logged, decides, known_rewards
from tanbr.loop.rewards import Given, Tally
from tanbr.loop.slot import Choice, Slot, Turn
from tanbr.loop.turn import first, turn
from tanbr.loop.world import MixSource
from tanbr.router.shell import AskTell
from tanbr.serve.panel import Assignment
from tanbr.tasks.metrics import Answer, LabelSpace
from tanbr.tasks.rows import Row
from tanbr.types import Blend, FloatArray, SlotRecord, TaskMix, Text, as_blend

Credit: TypeAlias = Literal["labels", "rewards"]  # what a client sends back
Respond: TypeAlias = Callable[[FloatArray, NDArray[np.intp], Sequence[Text]], list[Answer]]
# blends (G, K), the place of each text's model (n,), texts → answers
Answering: TypeAlias = Callable[[Sequence[Answer], FloatArray], list[Answer]]
# answers, posteriors (n, V) by the slot's mix → answers


@dataclass(frozen=True, eq=False)
class Ready:
    """A blend that is ready to answer."""

    version: int
    blend: Blend  # (K,)
    changed: bool


class StreamWorld:
    """Serves slots of labelled rows, one after the other."""

    def __init__(
        self,
        answer: Respond,
        space: LabelSpace,
        *,
        answering: Answering | None = None,
        credit: Credit = "labels",
        delay: int = 0,
        probes: Sequence[Row] = (),
        practice: int = 0,
        disjoint: bool = False,
    ) -> None:
        """Answer by `answer`; what clients send back comes `delay` slots later; `practice` requests a slot are tried.

        With `disjoint` rewards come for half of the rows, always the same, and what was earned is the other half's.
        """
        self._answer, self.space, self._answering = answer, space, answering
        self._credit, self._delay, self._probes = credit, delay, list(probes)
        self._index = {task.name: v for v, task in enumerate(space.tasks)}
        self._given: list[Given] = []
        self._coming: defaultdict[int, list[Given]] = defaultdict(list)  # slot in which they come → rewards
        self._texts: dict[bytes, Text] = {}
        self._log: dict[bytes, Logged] = {}
        self._practice, self._disjoint = practice, disjoint
        self._ended: dict[int, Slot] = {}
        self._live: Sequence[Ready] = ()
        self._staged: list[Ready] = []
        self._versions = 0  # the highest number that has answered
        self._requests = 0

    @property
    def practises(self) -> bool:
        """Whether blends are tried on logged requests."""
        return self._practice > 0

    # --- the stream -------------------------------------------------------------------------------------------------

    def play(
        self, learner: Learner, rows: Sequence[Row], collect: Callable[[Sequence[Row], FloatArray], None] | None = None
    ) -> tuple[Learner, SlotRecord]:
        """Serve a slot's requests and turn it; what was earned, by the true tags. `collect` hears the answers (n,)."""
        slot, texts = learner.slot, [row.text for row in rows]
        source: Any = learner.monitor
        recogniser = source.snapshot()
        seen = recogniser.recognise(texts)
        assignment = Assignment(slot.panel, recogniser)
        places = assignment.places(seen)
        answers = self._answer(slot.blends, places, texts)
        if self._answering is not None:  # as the server does: not where a text is unlike any task
            repaired = self._answering(answers, assignment.posteriors(seen))
            answers = [one if novel else new for one, new, novel in zip(answers, repaired, seen.novel, strict=True)]
        meant = self.space.read(rows, answers)
        earned = self.space.rewards(rows, meant)
        odd = np.array([crc32(repr(row.text).encode()) % 2 == 1 for row in rows], dtype=np.bool_)
        counted, teaches = odd | (not self._disjoint), ~odd | (not self._disjoint)
        self._send(learner, rows, seen, places, earned, meant, assignment.posteriors(seen), teaches)
        came = self._coming.pop(slot.number, [])
        self._given += [replace(one, seq=len(self._given) + i + 1) for i, one in enumerate(came)]
        learner = observe(learner, seen, came)
        of_others = [row for row, one in zip(rows, counted, strict=True) if one]
        reward, counts = self.space.slot_reward(of_others, earned[counted])
        if collect:
            collect(of_others, meant[counted])
        held = np.bincount(places, minlength=len(slot.blends)) / max(1, len(places))
        record = SlotRecord(slot.number, self._versions, slot.task_mix, held @ slot.blends, reward, counts)
        judged = learner.judged()
        forced = None if judged is None else learner.dismissing(*judged)
        bad = judged[:1] if judged is not None and forced is not None else ()
        return self._practised(turn(learner, self, forced=forced, bad=bad)), record

    def _practised(self, learner: Learner) -> Learner:
        """Practise what the learner wants tried, on as many requests as there is time for."""
        left = self._practice
        while left > 0 and (wanted := exercise(learner)) is not None:
            texts = [one.text for one in wanted.rows]
            answers = self._answer(wanted.blend[None], np.zeros(len(texts), dtype=np.intp), texts)
            earned = known_rewards(self.space, wanted.rows, answers, by_posterior=self._answering is not None)
            learner, left = practised(learner, wanted, earned), left - len(texts)
        return learner

    def _send(
        self, learner: Learner, rows: Sequence[Row], seen: Any, places: NDArray[np.intp], earned: FloatArray,
        meant: FloatArray, by_mix: FloatArray, teaches: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Let clients send back what they say of the rows that teach."""
        slot, labelled = learner.slot, self._credit == "labels"
        posteriors = seen.posteriors.astype(np.float32).astype(np.float64)  # as a server's store keeps them
        source, coming = "labels" if labelled else "feedback", self._coming[slot.number + self._delay]
        for i in np.flatnonzero(teaches).tolist():
            row, place, reward = rows[i], int(places[i]), float(earned[i])
            self._requests += 1
            key = self._requests.to_bytes(8, "big")
            self._texts[key] = row.text
            named, label = (self._index[row.task], row.target) if labelled else (None, None)
            task = int(by_mix[i].argmax()) if named is None else named
            if self._practice and decides(self.space.tasks[task], reward, label):
                read = meant[i] if self.space.tasks[task].name == row.task else -1.0
                self._log[key] = Logged(key, row.text, task, by_mix[i], reward, read, label, slot.blends[place])
            coming.append(
                Given(0, slot.number, place, source, named, reward, posteriors[i], novel=bool(seen.novel[i]), id=key)
            )

    # --- what a turn asks -------------------------------------------------------------------------------------------

    def last_reward(self) -> int:
        """Number of the newest reward."""
        return len(self._given)

    def rewards(self, *, after: int, upto: int, slot: int | None = None) -> list[Given]:
        """List the rewards with after < number ≤ upto, of one slot or of all."""
        return [one for one in self._given[after:upto] if slot is None or one.slot == slot]

    def measured(self, slot: int) -> dict[int, Tally]:  # noqa: ARG002
        """Nothing: this world gives no rewards by itself."""
        return {}

    def texts(self, ids: Sequence[bytes]) -> dict[bytes, Text]:
        """Look up the texts of requests."""
        return {key: self._texts[key] for key in ids if key in self._texts}

    def logged(self, rows: Sequence[Given], mix: TaskMix) -> list[Logged]:  # noqa: ARG002
        """Look up requests to practise on, as they were answered."""
        return [self._log[one.id] for one in rows if one.id in self._log]

    def ended(self, number: int) -> Slot | None:
        """Find a slot that the router was told already."""
        return self._ended.get(number)

    def answering(self, slot: Slot) -> Choice | None:
        """All models of the slot answer."""
        return slot.kept() if slot.versions else None

    def prepare(self, blend: Blend, version: int | None) -> Ready:
        """Number a blend; merges happen when it is asked."""
        blend = as_blend(blend, experts=len(blend))
        for live in self._live:
            if np.array_equal(blend, live.blend):
                return replace(live, changed=False)
        number = max([self._versions, *(one.version for one in self._staged)]) + 1 if version is None else version
        self._staged.append(Ready(number, blend, changed=True))
        return self._staged[-1]

    def probe(self, prepared: Ready, *, fully: bool) -> Probes:
        """Ask a blend the probe rows."""
        of = np.array([self._index[row.task] for row in self._probes if fully], dtype=np.intp)
        if not len(of):
            return Probes(np.zeros(0), of)
        texts = [row.text for row in self._probes]
        answers = self._answer(prepared.blend[None], np.zeros(len(texts), dtype=np.intp), texts)
        return Probes(self.space.rewards(self._probes, self.space.read(self._probes, answers)), of, "stream")

    def discard(self) -> None:
        """Forget what was prepared: its numbers are free again."""
        self._staged.clear()

    def write(self, turn: Turn, learner: Learner) -> None:  # noqa: ARG002
        """Remember slots for what comes late."""
        for told in turn.told:
            if not told.late:
                self._ended[told.slot.number] = replace(told.slot, decision=None)

    def commit(self, prepared: Sequence[Ready], learner: Learner) -> None:  # noqa: ARG002
        """Let these answer; the learner's slot says so, too."""
        self._live = tuple(prepared)
        self._staged.clear()
        self._versions = max([self._versions, *(one.version for one in prepared)])

    def alarm(self, text: str) -> None:
        """Stop: in a simulation nothing may fail unseen."""
        error = sys.exception()  # what the alarm is about, where that says all
        raise error if isinstance(error, TanbrError) else InputError(text)


class Contestant:
    """One method in a comparison: a world of its own, and what is learned in it."""

    def __init__(
        self,
        world: StreamWorld,
        router: AskTell,
        monitor: MixSource,
        *,
        start: StartBlend,
        models: int = 1,
        config: LoopConfig | None = None,
    ) -> None:
        """Open the first slot. A router chooses from then on, unless the settings say otherwise."""
        rules = Rules(config or LoopConfig(explore="always"), start, models)
        self.world, V = world, len(world.space.tasks)
        self.learner = first(rules, world, router=router, monitor=monitor, tasks=V, practises=world.practises)

    def play(
        self, rows: Sequence[Row], collect: Callable[[Sequence[Row], FloatArray], None] | None = None
    ) -> SlotRecord:
        """Serve one slot's requests, and learn from their rewards."""
        self.learner, record = self.world.play(self.learner, rows, collect)
        return record
