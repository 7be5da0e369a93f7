"""Adoption: a state goes on with other experts, other tasks, or another merge method, by names and contents.

Blends, mixes and rewards are written anew in the new order, in one transaction; a new expert has weight 0 in them. Only
what is known of an expert that is gone or has changed is forgotten: of a blend that used a little of it the rest stays
as a prior, but not what its own task earned.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from sqlite3 import Connection
from typing import Any

import numpy as np

from tanbr.errors import SettingsError, StateError
from tanbr.loop.choose import Pin
from tanbr.loop.config import RewardConfig
from tanbr.loop.slot import Reason, Version
from tanbr.loop.telling import earned, told_of
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.serve.backup import back_up
from tanbr.serve.journal import pin_text, read_pin, read_slot, read_trust, state_file
from tanbr.serve.lineage import MadeFor
from tanbr.serve.store import Store, from_half, half, shown, vector
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray, Text

PRIOR_COUNT = 16.0  # requests, at most, that a reward earned with another checkpoint, method or part of a blend counts
MOST_GONE = 0.5  # weight of experts that are gone above which a blend says nothing about the rest of it
NEAR_COUNT = 4.0  # requests, at most, that what like tasks earned at a blend counts for a task that is new
MOST_BLENDS = 1_000  # newest merge versions whose rewards a new router is told
LOWEST = float(np.finfo(np.float32).min)  # logit of a label that a head did not have


@dataclass(frozen=True)
class Moved:
    """Where each of some old things is among the new ones; None where it is gone."""

    to: tuple[int | None, ...]
    size: int

    @classmethod
    def of(cls, old: Sequence[Any], new: Sequence[Any]) -> "Moved":
        """Find equal things again."""
        return cls(tuple(new.index(one) if one in new else None for one in old), len(new))

    @property
    def kept(self) -> dict[int, int]:
        """Old place → new place of what is still there."""
        return {old: new for old, new in enumerate(self.to) if new is not None}

    def __call__(self, values: FloatArray, fill: float = 0.0) -> FloatArray:
        """Put values into the new order; what is new gets `fill`."""
        moved = np.full(self.size, fill)
        moved[list(self.kept.values())] = values[list(self.kept)]
        return moved

    def shares(self, values: FloatArray) -> FloatArray | None:
        """Put shares that sum to 1 into the new order; None if nothing is left of them."""
        moved = self(values)
        return moved / moved.sum() if moved.sum() > 1e-6 else None


@dataclass(frozen=True)
class Adoption:
    """From what a state was made for to what it is to serve."""

    old: MadeFor
    new: MadeFor

    @property
    def experts(self) -> Moved:
        """The experts, by name and content."""
        old, new = (list(zip(one.experts, one.own, strict=True)) for one in (self.old, self.new))
        return Moved.of(old, new)

    @property
    def tasks(self) -> Moved:
        """The tasks, by name."""
        return Moved.of(self.old.tasks, self.new.tasks)

    @property
    def exact(self) -> bool:
        """Whether a blend of experts that are still there is the same model as before."""
        return (self.old.method, self.old.shared) == (self.new.method, self.new.shared)

    def check(self, store: Store) -> "Adoption":
        """Refuse a state of which nothing could be kept."""
        if self.old.architecture != self.new.architecture:
            raise StateError(
                f"{store.folder} was made for {self.old.architecture}, and what its blends earned says nothing about "
                f"{self.new.architecture}; give another --state"
            )
        if not self.experts.kept and not self.tasks.kept:
            raise StateError(f"{store.folder} has no expert and no task of those to be served; give another --state")
        pin = read_pin(store)
        if pin is not None and (lost := self.lost(pin.blend)):
            raise StateError(
                f"{store.folder} has merge version {pin.version} pinned, which needs the expert "
                f"{', '.join(lost)} as it was; put it back, or unpin the version first (POST /v1/admin/unpin)"
            )
        return self

    def lost(self, blend: FloatArray) -> list[str]:
        """Name the experts of a blend (K,) that are gone or have changed."""
        return [self.old.experts[k] for k in np.flatnonzero(blend).tolist() if self.experts.to[k] is None]

    def carry_out(self, store: Store, config: RewardConfig, *, say: Callable[[str], None]) -> None:
        """Say what is kept, copy the folder, and write the state anew; what was earned is left for `inherit`."""
        before = _versions(store, self.old, config)
        after = [moved for one in before if (moved := self._moved(one)) is not None]
        for line in self._said(store, before=len(before), after=len(after)):
            say(line)
        number = next(n for n in range(1, 1 << 30) if not (store.folder / f"before-adopt-{n}").exists())
        say(f"a copy of the state as it was: {back_up(store.folder, store.folder / f'before-adopt-{number}')}")
        pin, made_for = read_pin(store), json.dumps(asdict(self.new))
        pinned = pin and pin_text(Pin(self.experts(pin.blend), store.last_version + 1))
        with store.transaction(made_for=made_for, guard=None, practice=None, pinned=pinned) as write:
            self._rewrite(write)
            rows = [(one.number, shown(one.blend), one.good, shown(one.sums), shown(one.counts)) for one in after]
            write.executemany("INSERT INTO versions VALUES (?, ?, 0, ?, 0, ?, ?)", rows)

    def _moved(self, version: Version) -> Version | None:
        """Put a version into the new order; None if it was mostly of experts that are gone or have changed."""
        lost, counts = self.lost(version.blend), version.counts
        blend = self.experts.shares(version.blend) if lost else self.experts(version.blend)
        left = float(self.experts(version.blend).sum()) if lost else 1.0
        if blend is None or left < 1 - MOST_GONE:
            return None
        limited = counts if self.exact and not lost else left * np.minimum(counts, PRIOR_COUNT)
        limited = np.where([name in lost for name in self.old.tasks], 0.0, limited)  # experts are called by their tasks
        if not (self.tasks(limited) > 0).any():
            return None
        sums = version.sums * limited / np.maximum(counts, 1e-12)
        return replace(version, blend=blend, sums=self.tasks(sums), counts=self.tasks(limited))

    def _said(self, store: Store, *, before: int, after: int) -> Iterable[str]:
        old, new, slots, counts = self.old, self.new, store.slots(), store.counts()
        yield (
            f"{store.folder} is adopted: {len(slots):,} slots, {counts['requests']:,} requests and "
            f"{counts['feedback']:,} pieces of feedback are kept"
        )
        still = {old.experts[place] for place in self.experts.kept}
        for what, among, others in (
            ("the same experts, by name and weights", old.experts, set(old.experts) - still),
            ("new experts, with weight 0 in old blends", new.experts, set(old.experts)),
            (
                "experts whose weights have changed: what they earned is forgotten",
                old.experts,
                still | set(old.experts) - set(new.experts),
            ),
            ("experts that are gone", old.experts, set(new.experts)),
            ("new tasks", new.tasks, set(old.tasks)),
            ("tasks that are gone, with feedback that names them", old.tasks, set(new.tasks)),
        ):
            if found := [name for name in among if name not in others]:
                yield f"{what}: {', '.join(found)}"
        dropped = f"; {before - after} were mostly of experts that are gone or changed" if after < before else ""
        prior = "" if self.exact else f", as at most {PRIOR_COUNT:.0f} requests each: the weights or the method differ"
        yield f"the router is told what {after} of {before} rewarded blends earned{prior}{dropped}"
        yield "not kept: merge versions to roll back to"

    def _rewrite(self, write: Connection) -> None:
        """Write all vectors of the store in the new order; of a blend that used what is gone, the rest is shown."""
        experts, tasks, columns = self.experts, self.tasks, Moved.of(self.old.columns, self.new.columns)

        def logits(values: FloatArray) -> FloatArray | None:
            return columns(values, LOWEST) if len(values) == len(columns.to) else None

        def left(moved: Moved, values: FloatArray) -> FloatArray:
            shares = moved.shares(values)
            return np.full(moved.size, 1.0 / moved.size) if shares is None else shares

        changes: dict[str, Callable[[Any], Any]] = {
            "blend": _stored(partial(left, experts)), "mix": _stored(partial(left, tasks)), "sums": _stored(tasks),
            "lost": lambda blend: bool(self.lost(vector(blend))),
            "reward": _stored(partial(tasks, fill=np.nan)), "posterior": _stored(tasks.shares, from_half, half),
            "logits": _stored(logits, from_half, half),
            "task": lambda place: None if place is None else tasks.kept.get(place),
        }  # fmt: skip
        for name, change in changes.items():
            write.create_function(f"moved_{name}", 1, change, deterministic=True)
        for statement in (
            "DELETE FROM versions",
            "UPDATE slots SET reason = 'gone' WHERE slot IN (SELECT slot FROM models WHERE moved_lost(blend))",
            "UPDATE models SET blend = moved_blend(blend), estimates = moved_sums(estimates)",
            "UPDATE slots SET told = 1, chance = NULL, mix = moved_mix(mix), estimate = moved_mix(estimate), "
            "reward = moved_reward(reward), counts = moved_sums(counts)",
            "DELETE FROM feedback WHERE task IS NOT NULL AND moved_task(task) IS NULL",
            "UPDATE feedback SET task = moved_task(task) WHERE task IS NOT NULL",
        ):
            write.execute(statement)
        if self.old.tasks != self.new.tasks:
            write.execute("UPDATE requests SET posterior = moved_posterior(posterior)")
        if self.old.columns != self.new.columns:
            write.execute("UPDATE requests SET logits = moved_logits(logits)")


def _versions(store: Store, made_for: MadeFor, config: RewardConfig) -> list[Version]:
    """Say what each merge version has earned by all feedback that the store holds."""
    trust, V = read_trust(store), len(made_for.tasks)
    bad = {row["version"] for row in store.versions() if not row["good"]}
    versions, told, nothing = {}, [], np.zeros(V)
    for row in store.slots():
        slot = read_slot(row, experts=len(made_for.experts), tasks=V)
        if slot.reason is Reason.GONE:
            continue
        worthless = [number for number in slot.versions if number in bad]  # said once, of its last slot
        bad -= set(worthless)
        rows = store.feedback(after=0, slot=slot.number)
        told.append(told_of(slot, rows, {}, trust, config, worthless=worthless))
        for number, blend in zip(slot.versions, slot.blends, strict=True):
            versions[number] = Version(number, blend, nothing, nothing)
    found = [one for one in earned(list(versions.values()), told) if (one.counts > 0).any()]
    return sorted(found, key=lambda one: one.number)[-MOST_BLENDS:]


def _stored(
    change: Callable[[FloatArray], FloatArray | None],
    read: Callable[[Any], FloatArray] = vector,
    write: Callable[[FloatArray], str | bytes] = shown,
) -> Callable[[Any], Any]:

    def changed(held: Any) -> Any:
        values = None if held is None else change(read(held))
        return None if values is None else write(values)

    return changed


def inherit(
    store: Store,
    router: Any,
    monitor: Monitor | Callable[[], Monitor],
    tasks: Sequence[str],
    config: MonitorConfig | None,
    *,
    past: Sequence[Row] = (),
    say: Callable[[str], None],
) -> Monitor:
    """Tell a new router what an adopted state has earned; the state's monitor, or a new one that knows what it knew."""
    old = None
    with suppress(SettingsError):  # a monitor of other settings reads texts otherwise
        old = None if store.meta("monitor") is None else Monitor.load(state_file(store, "monitor"), config=config)
    versions = [one for one in reversed(store.versions()) if (one["counts"] > 0).any()]
    if versions and hasattr(router, "warm_start"):
        blends, sums, counts = (np.array([one[name] for one in versions]) for name in ("blend", "sums", "counts"))
        if old is not None:
            _begin_new_tasks(old, tasks, sums, counts, past=past, say=say)
        rewards = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        router.warm_start(blends, np.clip(rewards, 0.0, 1.0), counts)
    if old is not None and old.tasks == tuple(tasks):
        return old
    new = monitor if isinstance(monitor, Monitor) else monitor()
    return new if old is None else new.recalling(old)


def _begin_new_tasks(
    old: Monitor,
    tasks: Sequence[str],
    sums: FloatArray,
    counts: FloatArray,
    *,
    past: Sequence[Row],
    say: Callable[[str], None],
) -> None:
    """Let a task that an old monitor did not know have earned (N, V) a little of what like tasks did."""
    for place in (place for place, name in enumerate(tasks) if name not in old.tasks):
        near = _like(old, tasks, [row.text for row in past if row.task == tasks[place]])
        like = counts @ near  # (N,)
        some = np.minimum(like, NEAR_COUNT) / np.maximum(like, 1e-12)
        sums[:, place], counts[:, place] = (sums @ near) * some, like * some
        best = ", ".join(f"{tasks[v]} {near[v]:.0%}" for v in np.argsort(-near)[:3] if near[v] >= 0.01)
        few = f"as at most {NEAR_COUNT:.0f} requests a blend"
        say(f"{tasks[place]} starts from what like tasks have earned, {few}: {best or 'none'}")


def _like(old: Monitor, tasks: Sequence[str], texts: Sequence[Text]) -> FloatArray:
    """Share of each task (V,), by its new place, that an old monitor takes texts for; all alike where it cannot say."""
    moved, alike = Moved.of(old.tasks, tasks), np.full(len(old.tasks), 1.0 / len(old.tasks))
    seen = old.snapshot().recognise(texts).posteriors.mean(axis=0) if texts else alike
    shares = moved.shares(seen)
    return np.zeros(len(tasks)) if shares is None else shares
