"""The turn of a slot: close the mix, learn, choose, prepare, write down, commit. Nothing else closes the loop.

    observe ──► close the mix ──ψ──► learn ──► choose ──x──► prepare ──► write down ──► commit
                                       ▲                                                  │
                                       └──────────── rewards ◄──── the world answers ◄────┘

Algorithm 1 closes its loop at line 14 and begins again at line 3. Here the rewards of a slot (line 8) come while later
slots are served: a turn learns from those that have come (lines 9 to 14), and then chooses (lines 3 to 7).

`turn` takes a learner (`learner.py`) and gives the next one. The *world* answers a few questions (`world.py`), writes
down what was decided and commits it. A served slot, a simulated one and a step of tuning differ in their world alone.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tanbr.loop.choose import Pin
from tanbr.loop.guard import Guard, Refused
from tanbr.loop.holdback import tossed
from tanbr.loop.learner import Learner, Rules, begun
from tanbr.loop.rewards import Trust
from tanbr.loop.slot import Choice, Phase, Reason, Slot, Told, Turn, Version
from tanbr.loop.telling import TAUGHT, teach_monitor, tell
from tanbr.loop.world import MixSource, P, World
from tanbr.router.panel import Readings
from tanbr.router.shell import AskTell
from tanbr.router.tanbr import Tanbr
from tanbr.types import Decision, SlotMix, TaskMix

log = logging.getLogger("tanbr.loop")

TRIES = 3  # choices of the router that may be probed and refused for one slot: each costs a merge


def first(
    rules: Rules,
    world: World[P],
    *,
    router: AskTell,
    monitor: MixSource,
    tasks: int,
    number: int = 0,
    mix: TaskMix | None = None,
    decision: Decision | None = None,
    trust: Trust | None = None,
    practises: bool = False,
    pin: Pin | None = None,
) -> Learner:
    """Open the first slot, for a mix (V,) or for every task alike, with a decision if the router made one already."""
    mix = np.full(tasks, 1.0 / tasks) if mix is None else mix
    learner = Learner(
        rules, router.fork(), monitor, trust=trust or Trust(), forecast=mix, pin=pin, mark=world.last_reward(),
        slot=Slot(number - 1, (), mix, np.zeros((0, 0)), np.zeros((0, tasks)), None, Reason.START),
        guard=Guard.empty(tasks), practice=begun(router, tasks) if practises else None,
    )  # fmt: skip
    choice = Choice.of(decision) if decision is not None else _choose(learner, None)
    prepared, learner = _prepare(learner, world, choice, None)
    return _finish(learner, world, prepared, Turn(learner.slot, None, None))


def turn(
    learner: Learner, world: World[P], *, forced: Choice | None = None, bad: Sequence[int] = (), worthless: bool = False
) -> Learner:
    """End the slot and open the next; the learner that goes on. If it raises, the old slot goes on.

    `forced` is served instead of asking the router. Rewards of a slot with `bad` versions are told at once, as zeros if
    these were worthless.
    """
    mark, kept = world.last_reward(), world.answering(learner.slot)
    closed, mix = _closed(learner, world, mark)  # line 3: ψ
    told: tuple[Told, ...] = ()
    try:
        after, told = tell(closed, world, mark, bad=bad, worthless=worthless)  # lines 8 to 14
    except Exception as error:  # a router that fails must not keep a bad blend answering
        forced, after = forced or _staying(kept, error), replace(closed, router=closed.router.fork())
        world.alarm(f"slot {learner.slot.number}: {_said(error)}; its rewards are told with the next turn")
    if after.phase is Phase.HARMED and learner.phase is not Phase.HARMED:
        world.alarm(f"{after.gain}: the start blend is served again")
    try:
        choice = forced or _choose(after, kept)  # lines 4 to 7: x
        prepared, after = _prepare(after, world, choice, kept)
    except Exception as error:
        world.alarm(f"slot {learner.slot.number}: {_said(error)}; what answers stays")
        told, (prepared, after) = (), _prepare(closed, world, _staying(kept, error), kept)
    return _finish(after, world, prepared, Turn(after.slot, closed.settling[-1], mix, told, tuple(bad)))


def _closed(learner: Learner, world: World[P], mark: int) -> tuple[Learner, SlotMix]:
    """Close the slot's mix, which labels that came may still change; what else came is logged for practice."""
    came, monitor, practice = world.rewards(after=learner.mark, upto=mark), learner.monitor.fork(), learner.practice
    teach_monitor(monitor, world, came, learner.trust)
    mix = monitor.close_slot()
    if practice is not None:
        fair = learner.trust.fair([row for row in came if learner.trust.of(row.client) > 0.5], TAUGHT) if came else []
        practice = practice.logged(world.logged(fair, learner.slot.task_mix))
    ended = replace(learner.slot, held=mix.estimate)
    settling = (*learner.settling, ended)
    after = replace(learner, monitor=monitor, forecast=mix.forecast, settling=settling, practice=practice)
    return after, mix


def _choose(learner: Learner, kept: Choice | None) -> Choice:
    """Choose for the forecast mix, where `kept` would serve on what answers."""
    rules, mix, pin, phase = learner.rules, learner.forecast, learner.pin, learner.phase
    if pin is not None:
        return Choice.one(pin.blend, len(mix), Reason.PINNED, "pinned", pin.version)
    chance = learner.chance or None if phase is Phase.LEARNING else None
    held = chance is not None and tossed(rules.seed, learner.slot.number + 1, chance)
    if phase is Phase.LEARNING and not held:
        return replace(_asked(learner), chance=chance)
    readings, router = Readings.of(mix, learner.monitor.confusion if rules.models > 1 else None), learner.router
    if phase is Phase.WAITING and learner.rewarded is not None and isinstance(router, Tanbr) and router.practises:
        known = router.suggest(readings, models=rules.models, optimism=0.0)
        return Choice.panel(known.blends, known.estimates, Reason.BEST, "no rewards any more: what is best so far")
    served = np.empty((0, 0)) if kept is None or held else kept.blends
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
            learner.router.decline(choice.decision)
            # what the probes have earned teaches all the same
            learner.router.warm_start(choice.blends[[len(prepared) - 1]], why.reward[None], why.counts[None])
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
