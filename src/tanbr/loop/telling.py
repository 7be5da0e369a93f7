"""Learn: what slots have earned is told to the router, and what labels say of texts to the monitor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tanbr.loop.config import RewardConfig
from tanbr.loop.guard import LEAST_COUNT
from tanbr.loop.holdback import WINDOW, Toss
from tanbr.loop.learner import Learner
from tanbr.loop.rewards import VERDICT, Given, Tally, Trust, credited, shares
from tanbr.loop.slot import Reason, Slot, Told, Version
from tanbr.loop.world import P, World
from tanbr.router.shell import AskTell
from tanbr.types import Text

TAUGHT = 256  # texts a slot, at most, that labels teach the monitor: about 0.2 s of one core
FIRM = 0.9  # posterior of a familiar text's task beyond which no label teaches the monitor otherwise


def teach_monitor(monitor: Any, world: World[P], rows: Sequence[Given], trust: Trust) -> None:
    """Let the monitor learn from texts whose labels, and so tasks, have come, never against what it firmly believes.

    What it does not believe itself, it takes from a client that leads (or is nobody in particular), or from several.
    """
    rows = [row for row in rows if row.source == "labels" and row.task is not None and trust.of(row.client) > 0.5]
    if not rows or not hasattr(monitor, "learn"):
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


def tell(
    learner: Learner, world: World[P], mark: int, *, bad: Sequence[int], worthless: bool
) -> tuple[Learner, tuple[Told, ...]]:
    """Tell a fork of the router the slots whose rewards are due, and what came late for those it was told."""
    config, trust, router, told = learner.rules.config.rewards, learner.trust, learner.router.fork(), []
    ended = learner.settling[-1]
    for slot in learner.settling:
        if ended.number - slot.number >= config.settle_slots or (bad and slot is ended):
            rows = world.rewards(after=0, upto=mark, slot=slot.number)
            for place in range(len(slot.versions)):  # clients are compared model by model
                trust = trust.learned([row for row in rows if row.place == place], slot.mix)
            zeros = bad if worthless and slot is ended else ()
            told.append(told_of(slot, rows, world.measured(slot.number), trust, config, worthless=zeros))
    waiting = {slot.number for slot in learner.settling}
    late: dict[int, list[Given]] = {}
    for row in world.rewards(after=learner.mark, upto=mark):
        if row.slot not in waiting:
            late.setdefault(row.slot, []).append(row)
    for number, came in late.items():
        found = world.ended(number)
        if found is not None:
            told.append(replace(told_of(found, came, {}, trust, config), late=True))
    for one in told:
        _teach(router, one)
    tosses = [one for one in learner.tosses if one.slot > ended.number - WINDOW]
    for one in told:
        slot, record = one.slot, one.record
        if slot.chance is not None and not one.late:
            held = slot.reason is Reason.HELD_BACK
            tosses.append(Toss(slot.number, slot.chance, held, slot.mix, record.reward, record.counts))
    done = {one.slot.number for one in told}
    settling = tuple(slot for slot in learner.settling if slot.number not in done)
    heard = any((one.counts > 0).any() for one in told)
    rewarded = ended.number + 1 if heard else learner.rewarded
    after = replace(
        learner, router=router, trust=trust, mark=mark, settling=settling, rewarded=rewarded,
        versions=earned(learner.versions, told), tosses=tuple(tosses),
    )  # fmt: skip
    return after, tuple(told)


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


def _teach(router: AskTell, told: Told) -> None:
    """Tell the router the rewards of a slot's models; what it did not choose teaches it as a warm start."""
    slot, decision, taught = told.slot, told.slot.decision, (told.counts > 0).any(axis=1)
    if decision is not None and not told.late:
        rewards, counts = np.full(decision.estimates.shape, np.nan), np.zeros(decision.estimates.shape)
        for blend, reward, count in zip(slot.blends, told.rewards, told.counts, strict=True):
            row = np.abs(decision.blends - blend).sum(axis=1).argmin()  # the nearest: a saved one may have lost digits
            rewards[row], counts[row] = reward, count
        router.tell(decision, rewards, counts)
    elif taught.any():
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
