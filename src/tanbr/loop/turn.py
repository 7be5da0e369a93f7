"""The turn of a slot: observe, close the mix, learn, choose, prepare, write down, commit. Nothing else closes the loop.

    observe ──► close the mix ──ψ──► learn ──► choose ──x──► prepare ──► write down ──► commit
                                       ▲                                                  │
                                       └──────────── rewards ◄──── the world answers ◄────┘

A learner is one value. `observe` and `turn` take it and return the next one; to keep the old one is to undo them.
Router and monitor are forked before they are touched, which costs next to nothing. The *world* answers a few questions:
what was earned, what answers now, can these blends be served; and it writes down and commits what was decided. A served
slot, a simulated one and a step of tuning differ in their world alone.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from tanbr.loop.choose import Pin, StartBlend, best_known
from tanbr.loop.config import LoopConfig, RewardConfig
from tanbr.loop.guard import LEAST_COUNT, Guard, Probes, Refused
from tanbr.loop.holdback import SETTLED, WINDOW, Gain, Toss, gain_of, tossed
from tanbr.loop.practice import Exercise, Logged, Practice
from tanbr.loop.rewards import VERDICT, Given, Tally, Trust, credited, shares
from tanbr.loop.slot import Choice, Phase, Reason, Slot, Told, Turn, Version
from tanbr.router.panel import Readings
from tanbr.types import Blend, Decision, FloatArray, Router, SlotMix, TaskMix, Text

if TYPE_CHECKING:  # settings are read without scikit-learn
    from tanbr.monitor.recogniser import Recognition

log = logging.getLogger("tanbr.loop")

TAUGHT = 256  # texts a slot, at most, that labels teach the monitor: about 0.2 s of one core
TRIES = 3  # choices of the router that may be probed and refused for one slot: each costs a merge
FIRM = 0.9  # posterior of a familiar text's task beyond which no label teaches the monitor otherwise


class MixSource(Protocol):
    """What tells the mix of untagged requests; `tanbr.Monitor` is one."""

    @property
    def confusion(self) -> FloatArray | None:
        """Share of each task's requests that is read as each task (V, V); None if all are read rightly."""
        ...

    def count(self, seen: "Recognition") -> None:
        """Take in requests of the open slot that were recognised."""
        ...

    def close_slot(self) -> SlotMix:
        """End the slot: its mix, and the forecast for the next."""
        ...

    def fork(self) -> "MixSource":
        """Give an independent copy."""
        ...


class Prepared(Protocol):
    """A blend that is ready to answer."""

    @property
    def version(self) -> int:
        """Its merge version."""
        ...

    @property
    def changed(self) -> bool:
        """Whether it does not answer already."""
        ...


P = TypeVar("P", bound=Prepared)


class World(Protocol[P]):
    """Where slots are served."""

    def last_reward(self) -> int:
        """Number of the newest reward."""
        ...

    def rewards(self, *, after: int, upto: int, slot: int | None = None) -> Sequence[Given]:
        """List the rewards with after < number ≤ upto, of one slot or of all, oldest first."""
        ...

    def measured(self, slot: int) -> dict[int, Tally]:
        """Rewards that the world gave the models of a slot by itself, by the place of the model."""
        ...

    def measured_late(self) -> Sequence[int]:
        """Slots that the router was told already and for which the world measured rewards since."""
        ...

    def texts(self, ids: Sequence[bytes]) -> Mapping[bytes, Text]:
        """Look up the texts of answered requests, as far as they are at hand."""
        ...

    def logged(self, rows: Sequence[Given], mix: TaskMix) -> Sequence[Logged]:
        """Look up requests to practise on: those whose outcome says what other answers would have earned.

        They were answered in a slot of this mix (V,).
        """
        ...

    def ended(self, number: int) -> Slot | None:
        """Find a slot that the router was told already."""
        ...

    def answering(self, slot: Slot) -> Choice | None:
        """Say what answers now, where `slot` is open: all of its models, unless one broke. None: nothing does."""
        ...

    def prepare(self, blend: Blend, version: int | None) -> P:
        """Make the merge of a blend (K,) ready to answer; `version` numbers one that had a number before."""
        ...

    def probe(self, prepared: P, *, fully: bool) -> Probes:
        """Ask a blend that is ready the probe texts, or only whether it answers with numbers."""
        ...

    def discard(self) -> None:
        """Forget what was prepared."""
        ...

    def write(self, turn: Turn, learner: "Learner") -> None:
        """Write the turn down, before anything of it shows; if it raises, nothing happened."""
        ...

    def commit(self, prepared: Sequence[P], learner: "Learner") -> None:
        """Let what was prepared, and nothing else, answer from now on.

        Where it has to merge for that it may fail: what answers then is whole, old or new.
        """
        ...

    def alarm(self, text: str) -> None:
        """Tell operators."""
        ...


@dataclass(frozen=True, eq=False)
class Rules:
    """What does not change from slot to slot."""

    config: LoopConfig
    start: StartBlend
    models: int = 1  # G, most that are served side by side
    seed: int = 0  # of the coins that hold slots back


@dataclass(frozen=True, eq=False)
class Learner:
    """All that is known when a slot is open."""

    rules: Rules
    router: Router
    monitor: MixSource
    slot: Slot
    guard: Guard
    trust: Trust
    forecast: TaskMix  # (V,) for the open slot
    settling: tuple[Slot, ...] = ()  # ended slots that the router was not told of yet
    versions: tuple[Version, ...] = ()  # merge versions that are remembered, oldest first
    rewarded: int | None = None  # slot that was opened when the router was last told a reward
    mark: int = 0  # rewards up to this number are in the router's state, as far as their slot was told
    pin: Pin | None = None
    practice: Practice | None = None  # where blends are tried on logged requests
    tosses: tuple[Toss, ...] = ()  # slots that could have been held back, and what they earned, oldest first

    @property
    def phase(self) -> Phase:
        """Who chooses for the next slot: a careful loop explores only while rewards come."""
        config, last = self.rules.config, self.rewarded
        if self.pin is not None:
            return Phase.PINNED
        if config.explore == "never":
            return Phase.FIXED
        if config.hold_back and self.gain is not None and self.gain.harms:
            return Phase.HARMED
        fresh = last is not None and self.slot.number + 1 - last <= config.patience
        return Phase.LEARNING if fresh or config.explore == "always" else Phase.WAITING

    @cached_property
    def gain(self) -> Gain | None:
        """What learning is worth, by the slots that were held back."""
        return gain_of(self.tosses)

    @property
    def chance(self) -> float:
        """That the next slot is held back."""
        return self.rules.config.hold_back * (SETTLED if self.gain is not None and self.gain.pays else 1.0)

    @property
    def good(self) -> list[Version]:
        """The merge versions that may be served again."""
        return [version for version in self.versions if version.good]

    def judged(self) -> tuple[int, str] | None:
        """Name a version that the guard wants to answer no more, and why; None while an operator has chosen."""
        return None if self.pin is not None else self.guard.judged(self.trust, margin=self.rules.config.margin)

    def dismissing(self, version: int, why: str) -> Choice | None:
        """Say what to serve instead of a bad version: the others of its panel, or the newest good one before it."""
        note = f"rolled back: {why}"
        left = self.slot.kept().without(version)
        if left is not None:
            return replace(left, reason=Reason.ROLLED_BACK, note=note)
        good = [one for one in self.good if one.number not in self.slot.versions]
        tasks = len(self.forecast)
        return Choice.one(good[-1].blend, tasks, Reason.ROLLED_BACK, note, good[-1].number) if good else None


def first(
    rules: Rules,
    world: World[P],
    *,
    router: Router,
    monitor: MixSource,
    tasks: int,
    number: int = 0,
    mix: TaskMix | None = None,
    decision: Decision | None = None,
    trust: Trust | None = None,
    practises: bool = False,
    pin: Pin | None = None,
) -> Learner:
    """Open the first slot, for a mix (V,) or for every task alike, with a decision that the router made already if any.

    What was told before is left alone, and so are the trust in clients and what an operator pinned, if there is any.
    """
    mix = np.full(tasks, 1.0 / tasks) if mix is None else mix
    nothing = Slot(number - 1, (), mix, np.zeros((0, 0)), np.zeros((0, tasks)), None, Reason.START)
    guard, mark = Guard.empty(tasks), world.last_reward()
    known: dict[str, Any] = {"practice": begun(router, tasks) if practises else None, "mark": mark, "pin": pin}
    learner = Learner(rules, fork(router), monitor, nothing, guard, trust or Trust(), mix, **known)
    choice = Choice.of(decision) if decision is not None else _choose(learner, None)
    prepared, learner = _prepare(learner, world, choice, None)
    return _finish(learner, world, prepared, Turn(learner.slot, None, None))


def observe(learner: Learner, seen: "Recognition | None", rewards: Sequence[Given] = ()) -> Learner:
    """Take in requests that were recognised, and show the guard rewards of the open slot."""
    if seen is not None and len(seen):
        monitor = learner.monitor.fork()
        monitor.count(seen)
        learner = replace(learner, monitor=monitor)
    guard, slot = learner.guard, learner.slot
    for row in rewards:
        if row.counts and row.slot == slot.number and row.place < len(slot.versions):
            share = learner.trust.of(row.client) * row.share(learner.forecast)
            guard = guard.seen(slot.versions[row.place], share, row.reward, row.client)
    return replace(learner, guard=guard)


def turn(
    learner: Learner, world: World[P], *, forced: Choice | None = None, bad: Sequence[int] = (), worthless: bool = False
) -> Learner:
    """End the slot and open the next; the learner that goes on. If it raises, the old slot goes on.

    `forced` is served instead of asking the router. The rewards of a slot with `bad` versions are told at once, with
    zeros for these if they were worthless.
    """
    mark = world.last_reward()
    came = world.rewards(after=learner.mark, upto=mark)
    monitor = learner.monitor.fork()
    _teach_monitor(monitor, world, came, learner.trust)
    mix = monitor.close_slot()
    if learner.practice is not None:
        fair = learner.trust.fair([row for row in came if learner.trust.of(row.client) > 0.5], TAUGHT) if came else []
        learner = replace(learner, practice=learner.practice.logged(world.logged(fair, learner.slot.task_mix)))
    kept = world.answering(learner.slot)
    ended = replace(learner.slot, held=mix.estimate)
    waiting = (*learner.settling, ended)
    untold = replace(learner, monitor=monitor, forecast=mix.forecast, settling=waiting)
    told: tuple[Told, ...] = ()
    after = replace(untold, router=fork(learner.router))
    try:
        after, told = _tell(after, world, mark, bad=bad, worthless=worthless)
    except Exception as error:  # a router that fails must not keep a bad blend answering
        forced = forced or _staying(kept, error)
        after, told = replace(untold, router=fork(learner.router)), ()
        world.alarm(f"slot {ended.number}: {_said(error)}; its rewards are told with the next turn")
    if after.phase is Phase.HARMED and learner.phase is not Phase.HARMED:
        world.alarm(f"{after.gain}: the start blend is served again")
    try:
        prepared, after = _prepare(after, world, forced or _choose(after, kept), kept)
    except Exception as error:
        after, told = untold, ()
        world.alarm(f"slot {ended.number}: {_said(error)}; what answers stays")
        prepared, after = _prepare(after, world, _staying(kept, error), kept)
    return _finish(after, world, prepared, Turn(after.slot, ended, mix, told, tuple(bad)))


def begun(router: Any, tasks: int) -> Practice | None:
    """Begin to practise, if a router can learn from it."""
    if not getattr(router, "practises", False):
        return None
    own = router.chances
    return Practice(router.experts, tasks, believed=own if own.any() else None)


def exercise(learner: Learner) -> Exercise | None:
    """Say what to practise next; None if there is nothing to try, or nothing to try it on."""
    if learner.practice is None or learner.pin is not None or learner.rules.config.explore == "never":
        return None
    if not learner.practice.rows:
        return None  # before the confusion is asked for, which takes a second
    models = learner.rules.models
    confusion = learner.monitor.confusion if models > 1 else None
    return learner.practice.next(learner.router, learner.forecast, models=models, confusion=confusion)


def practised(learner: Learner, done: Exercise, earned: FloatArray) -> Learner:
    """Take in what the rows of an exercise have earned, and may have (2, n)."""
    if learner.practice is None:
        return learner
    router = fork(learner.router)
    practice = learner.practice.learned(done, earned, router=router, slot=learner.slot.number)
    return replace(learner, router=router, practice=practice)


def fork(router: Router) -> Router:
    """Give an independent copy of a router: at once where it can do that itself."""
    forked: Router = router.fork() if hasattr(router, "fork") else copy.deepcopy(router)
    return forked


def _teach_monitor(monitor: Any, world: World[P], rows: Sequence[Given], trust: Trust) -> None:
    """Let the monitor learn from texts whose labels, and so tasks, have come since the last turn.

    Never against what it firmly believes. What it does not believe itself, it takes from a client that leads (or is
    nobody in particular), or from several clients that say the same of a text.
    """
    rows = [row for row in rows if row.source == "labels" and row.task is not None and trust.of(row.client) > 0.5]
    if not rows or not getattr(monitor, "learns", False):
        return
    texts = world.texts([row.id for row in rows])
    rows = [row for row in rows if row.id in texts]
    claims: dict[tuple[Text, int | None], set[str]] = {}
    for row in rows:
        claims.setdefault((texts[row.id], row.task), set()).add(row.client)
    fair = trust.fair(rows, TAUGHT)
    seen = monitor.snapshot().recognise([texts[row.id] for row in fair])
    best, known = seen.posteriors.argmax(axis=1), ~seen.novel & seen.informed
    firm = known & (seen.posteriors.max(axis=1, initial=0.0) > FIRM)
    taught = []
    for row, task, is_known, is_firm in zip(fair, best, known, firm, strict=True):
        believed = not row.client or trust.leads(row.client) or len(claims[texts[row.id], row.task]) > 1
        if (is_known and row.task == task) or (believed and not is_firm):
            taught.append(row)
    monitor.learn([texts[row.id] for row in taught], [monitor.tasks[row.task] for row in taught])


def _tell(
    learner: Learner, world: World[P], mark: int, *, bad: Sequence[int], worthless: bool
) -> tuple[Learner, tuple[Told, ...]]:
    """Tell the router the slots whose rewards are due, and what came late for those it was told."""
    config, trust, told = learner.rules.config.rewards, learner.trust, []
    ended = learner.settling[-1]
    for slot in learner.settling:
        if ended.number - slot.number >= config.settle_slots or (bad and slot is ended):
            rows = world.rewards(after=0, upto=mark, slot=slot.number)
            for place in range(len(slot.versions)):  # clients are compared model by model
                trust = trust.learned([row for row in rows if row.place == place], slot.mix)
            zeros = bad if worthless and slot is ended else ()
            told.append(told_of(slot, rows, world.measured(slot.number), trust, config, worthless=zeros))
    waiting = {slot.number for slot in learner.settling}
    again = world.measured_late()  # of other slots the router was told already what the world measured
    late: dict[int, list[Given]] = {number: [] for number in again}
    for row in world.rewards(after=learner.mark, upto=mark):
        if row.slot not in waiting:
            late.setdefault(row.slot, []).append(row)
    for number, came in late.items():
        found = world.ended(number)
        if found is not None:
            measured = world.measured(number) if number in again else {}
            told.append(replace(told_of(found, came, measured, trust, config), late=True))
    for one in told:
        _teach(learner.router, one)
    tosses = [one for one in learner.tosses if one.slot > ended.number - WINDOW]
    tosses += [toss for one in told if (toss := _toss(one)) is not None]
    done = {one.slot.number for one in told}
    heard = any((one.counts > 0).any() for one in told)
    after = replace(
        learner,
        trust=trust,
        mark=mark,
        settling=tuple(slot for slot in learner.settling if slot.number not in done),
        rewarded=ended.number + 1 if heard else learner.rewarded,
        versions=earned(learner.versions, told),
        tosses=tuple(tosses),
    )
    return after, tuple(told)


def _toss(told: Told) -> Toss | None:
    """Say what a slot earned that could have been held back; rewards that came late are left out, whatever it was."""
    slot, record = told.slot, told.record
    if slot.chance is None or told.late:
        return None
    return Toss(slot.number, slot.chance, slot.reason is Reason.HELD_BACK, slot.mix, record.reward, record.counts)


def told_of(
    slot: Slot,
    rows: Sequence[Given],
    measured: Mapping[int, Tally],
    trust: Trust,
    config: RewardConfig,
    *,
    worthless: Sequence[int] = (),
) -> Told:
    """Credit a slot's models with what clients gave and the world measured, and worthless versions with zeros."""
    mixes, tasks = slot.mixes(slot.mix), len(slot.mix)
    before = [measured.get(place, Tally(tasks)) for place in range(len(slot.versions))]
    tallies = credited(before, rows, slot.mix, trust)
    for place, version in enumerate(slot.versions):
        if version in worthless:
            tallies[place] = tallies[place].add(VERDICT, np.zeros(tasks), LEAST_COUNT * mixes[place])
    rewards, counts = (np.array(table) for table in zip(*(tally.reward(config) for tally in tallies), strict=True))
    return Told(slot, rewards, counts, shares(tallies, config))


def _teach(router: Any, told: Told) -> None:
    """Tell the router the rewards of a slot's models; what it did not choose teaches it as a warm start."""
    slot, decision, taught = told.slot, told.slot.decision, (told.counts > 0).any(axis=1)
    if decision is not None and not told.late:
        rewards, counts = np.full(decision.estimates.shape, np.nan), np.zeros(decision.estimates.shape)
        for blend, reward, count in zip(slot.blends, told.rewards, told.counts, strict=True):
            row = np.abs(decision.blends - blend).sum(axis=1).argmin()  # the nearest: a saved one may have lost digits
            rewards[row], counts[row] = reward, count
        router.tell(decision, rewards, counts)
    elif taught.any() and hasattr(router, "warm_start"):
        router.warm_start(slot.blends[taught], told.rewards[taught], told.counts[taught])


def earned(versions: Sequence[Version], told: Sequence[Told]) -> tuple[Version, ...]:
    """Add what slots earned to their merge versions."""
    known = {version.number: version for version in versions}
    for one in told:
        for number, reward, count in zip(one.slot.versions, one.rewards, one.counts, strict=True):
            if number in known:
                old = known[number]
                sums = old.sums + np.where(count > 0, reward, 0.0) * count
                known[number] = replace(old, sums=sums, counts=old.counts + count)
    return tuple(known.values())


def _choose(learner: Learner, kept: Choice | None) -> Choice:
    """Choose for the forecast mix, where `kept` would serve on what answers."""
    rules, mix, pin, phase = learner.rules, learner.forecast, learner.pin, learner.phase
    if pin is not None:
        return Choice.one(pin.blend, len(mix), Reason.PINNED, "pinned", pin.version)
    chance = learner.chance or None if phase is Phase.LEARNING else None
    held = chance is not None and tossed(rules.seed, learner.slot.number + 1, chance)
    if phase is Phase.LEARNING and not held:
        return replace(_asked(learner), chance=chance)
    if phase is Phase.WAITING and learner.rewarded is not None:
        best = best_known(learner.good, mix, rules.models)
        if best is not None:
            return best
    served = np.empty((0, 0)) if kept is None or held else kept.blends
    readings = Readings.of(mix, learner.monitor.confusion if rules.models > 1 else None)
    blends, estimates = rules.start(readings, served, models=rules.models)
    if held:
        note = "held back: the start blend, to compare with"
        return replace(Choice.panel(blends, estimates, Reason.HELD_BACK, note), chance=chance)
    return Choice.panel(blends, estimates, Reason.START, f"{phase}: the start blend")


def _asked(learner: Learner) -> Choice:
    """Ask the router for a blend, or for as many as are served side by side."""
    models, router, mix = learner.rules.models, learner.router, learner.forecast
    if models == 1:
        return Choice.of(router.ask(mix))
    return Choice.of(router.ask(mix, models=models, confusion=learner.monitor.confusion))


def _decline(router: Any, decision: Decision) -> None:
    """Take back a decision that was never served: it leaves no trace in the router."""
    if hasattr(router, "decline"):
        router.decline(decision)
    else:
        router.tell(decision, np.full(decision.estimates.shape, np.nan))


def _prepare(learner: Learner, world: World[P], choice: Choice, kept: Choice | None) -> tuple[Sequence[P], Learner]:
    """Merge what was chosen and have the guard look at it: what is ready, and the learner with the next slot open.

    What is refused is told to the router, which may choose again; at last what answers is `kept`.
    """
    mix, refused = learner.forecast, 0
    while True:
        prepared: list[P] = []
        slot = Slot.of(choice, number=learner.slot.number + 1, versions=(), task_mix=mix)
        guard, numbers = learner.guard, choice.versions or (None,) * len(choice.blends)
        compared = choice.reason in (Reason.CHOSEN, Reason.START, Reason.BEST, Reason.HELD_BACK)
        # nobody may refuse what others fall back to
        margin = learner.rules.config.margin if choice.reason is Reason.CHOSEN else np.inf
        try:
            for blend, number, own in zip(choice.blends, numbers, slot.mixes(mix), strict=True):
                prepared.append(world.prepare(blend, number))
                if prepared[-1].changed:
                    probes = world.probe(prepared[-1], fully=compared)
                    guard = guard.probed(prepared[-1].version, probes, own, margin=margin)
            versions = tuple(one.version for one in prepared)
            return prepared, replace(learner, guard=guard, slot=replace(slot, versions=versions))
        except BaseException as why:
            world.discard()
            if not isinstance(why, Refused) or choice.decision is None or kept is None:
                raise
            log.info("a blend is not served: %s", why)
            router: Any = learner.router
            _decline(router, choice.decision)
            if hasattr(router, "warm_start"):  # what the probes have earned teaches all the same
                router.warm_start(choice.blends[[len(prepared) - 1]], why.reward[None], why.counts[None])
            refused += 1
            other = _asked(learner) if refused < TRIES else replace(kept, note=f"refused: {why}")
            choice = replace(other, chance=choice.chance)


def _finish(learner: Learner, world: World[P], prepared: Sequence[P], done: Turn) -> Learner:
    """Write the turn down, then let what was prepared answer."""
    config, opened = learner.rules.config, learner.slot
    keep = config.keep_versions * learner.rules.models
    guard = learner.guard.opened(opened.versions, bad=done.bad, keep=keep)
    known = {one.number: replace(one, good=one.good and one.number not in done.bad) for one in learner.versions}
    nothing = np.zeros(len(opened.task_mix))
    for number, blend in zip(opened.versions, opened.blends, strict=True):
        known.setdefault(number, Version(number, blend, nothing, nothing))
    kept = sorted(known, key=lambda number: (number in opened.versions, number))[-max(keep, len(opened.versions)) :]
    learner = replace(learner, guard=guard, versions=tuple(known[number] for number in sorted(kept)))
    try:
        world.write(done, learner)
    except BaseException:
        world.discard()
        raise
    try:
        world.commit(prepared, learner)
    except Exception as error:  # a merge in place may fail even now: what is whole gets a slot of its own
        changed = [str(one.version) for one in prepared if one.changed]
        world.alarm(f"merge version {', '.join(changed)} cannot be served: {_said(error)}")
        whole = world.answering(opened)
        if whole is None and set(known) == set(opened.versions):  # the first of all: nothing has begun
            raise
        if whole is not None and changed:
            try:
                return turn(learner, world, forced=_staying(whole, error))
            except Exception as failed:  # the slot is on disk, so it stays open, whatever answers in it
                world.alarm(f"slot {opened.number} goes on with what is whole: {_said(failed)}")
    return learner


def _staying(kept: Choice | None, error: Exception) -> Choice:
    if kept is None:
        raise error
    return replace(kept, reason=Reason.FAILED, note=f"failed: {_said(error)}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
