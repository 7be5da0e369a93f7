"""What a state was made for: checkpoint, merge method, experts, tasks; and how it goes on with others (`--adopt`).

Experts and tasks are found again by names and contents. Blends, mixes and rewards are written anew in the new order, in
one transaction; a new expert has weight 0 in them. Only what is known of an expert that is gone or has changed is
forgotten: of a blend that used a little of it the rest stays as a prior, but not what its own task earned.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from tanbr.errors import SettingsError, StateError
from tanbr.loop.choose import Pin
from tanbr.loop.config import RewardConfig
from tanbr.loop.slot import Reason, Version
from tanbr.loop.telling import earned, told_of
from tanbr.merge import Moe
from tanbr.merge.export import public_name
from tanbr.merge.sources.heads import labels_of
from tanbr.monitor import Monitor
from tanbr.monitor.config import MonitorConfig
from tanbr.serve.backup import back_up
from tanbr.serve.journal import pin_text, read_pin, read_slot, read_trust, state_file
from tanbr.serve.store import FILE, Store, StoreReader, from_half, half, peek, reading, shown, vector
from tanbr.tasks.card import read_card
from tanbr.tasks.rows import Row
from tanbr.types import FloatArray

SAMPLES, BLOCK = 256, 4096  # blocks of a file, and their bytes, that tell checkpoints apart
PRIOR_COUNT = 16.0  # requests, at most, that a reward earned with another checkpoint, method or part of a blend counts
MOST_GONE = 0.5  # weight of experts that are gone above which a blend says nothing about the rest of it
NEAR_COUNT = 4.0  # requests, at most, that what like tasks earned at a blend counts for a task that is new
MOST_BLENDS = 1_000  # newest merge versions whose rewards a new router is told


@dataclass(frozen=True)
class MadeFor:
    """What a state cannot do without."""

    tasks: tuple[str, ...]
    experts: tuple[str, ...]  # (K,) names, in the order of a blend
    method: str
    checkpoint: str  # fingerprint of all weights
    architecture: str = ""
    shared: str = ""  # fingerprint of the weights that belong to no expert alone
    own: tuple[str, ...] = ()  # (K,) of the weights that do; empty strings for an MoE's, which lie side by side
    columns: tuple[str, ...] = ()  # of the head


def made_for(moe: Moe, tasks: Sequence[str]) -> MadeFor:
    """Say what a state of this checkpoint is made for."""
    source = moe.source
    own = [source.own_files(k) for k in range(source.count)]
    apart = {path for files in own for path in files}
    labels = source.expert_labels or [()] * source.count
    every = [file.path for file in moe.checkpoint.files]
    return MadeFor(
        tuple(tasks),
        expert_names(moe),
        str(moe.method),
        _fingerprint(every),
        str(moe.config["architectures"][0]),
        _fingerprint([path for path in every if path not in apart]),
        tuple(_fingerprint(files, repr(of)) if files else "" for files, of in zip(own, labels, strict=True)),
        labels_of(moe.config),
    )


def expert_names(moe: Moe) -> tuple[str, ...]:
    """Name the experts (K,): by their tasks, else by their folders, else by their numbers; and the base."""
    source, trained = moe.source, moe.source.trained
    base = ("base",) * source.with_base
    tasks = source.expert_tasks or read_card(moe.path).expert_tasks
    if len(tasks) == trained:
        return tuple(tasks) + base
    if not source.own_files(0):
        return tuple(f"expert {k + 1} of {trained}" for k in range(trained)) + base
    folders = tuple(public_name(Path(name)) for name in source.names[:trained]) + base
    return folders if len(set(folders)) == len(folders) else tuple(source.names)


def _fingerprint(files: Sequence[Path], more: str = "") -> str:
    """Tell weights apart by samples: they may have a hundred gigabytes, and training moves all of them."""
    digest = hashlib.sha256(more.encode())
    for path in files:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as stream:
            for start in np.linspace(0, max(0, size - BLOCK), SAMPLES).astype(int).tolist():
                stream.seek(start)
                digest.update(stream.read(BLOCK))
    return digest.hexdigest()[:32]


def read_made_for(store: StoreReader) -> MadeFor | None:
    """Read what a state was made for; None if it is new."""
    text = store.meta("made_for")
    if text is None:
        return None
    with reading(store.folder):
        return TypeAdapter(MadeFor).validate_json(text)


def method_of(folder: Path) -> str | None:
    """Say how the blends of a state are merged; None if there is no state yet."""
    if not (folder / FILE).is_file():
        return None
    with peek(folder) as store:
        made = read_made_for(store)
    return None if made is None else made.method


def lineage(store: Store, wanted: MadeFor, *, adopt: bool) -> "Adoption | None":
    """Check that a state is new or was made for what is wanted (None), or how it is to go on with that."""
    found = read_made_for(store)
    if found is None or store.next_slot == 0:  # what was begun and could not start binds nobody
        with store.transaction(made_for=json.dumps(asdict(wanted)), way=None):  # nor is it known how its model runs
            pass
        return None
    if found == wanted:
        return None
    if not adopt:
        name = next(name for name in asdict(found) if getattr(found, name) != getattr(wanted, name))
        old, new = (", ".join(v) if isinstance(v := getattr(one, name), tuple) else v for one in (found, wanted))
        changed = [one for one, *own in zip(found.experts, found.own, wanted.own, strict=False) if len(set(own)) > 1]
        said = f"{name} {old}, not for {new}"
        if name == "checkpoint" and changed:
            said = f"other weights of {', '.join(changed)}"
        raise StateError(
            f"{store.folder} was made for {said}; give another --state, or --adopt to keep what was learned as a prior"
        )
    return Adoption(found, wanted).check(store)


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
            ("experts that are gone or have other weights: what they earned is forgotten", old.experts, still),
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
        experts, tasks = self.experts, self.tasks

        def left(moved: Moved, values: FloatArray) -> FloatArray:
            shares = moved.shares(values)
            return np.full(moved.size, 1.0 / moved.size) if shares is None else shares

        def posterior(held: bytes | None) -> bytes | None:
            shares = None if held is None else tasks.shares(from_half(held))
            return None if shares is None else half(shares)

        changes: dict[str, Callable[[Any], Any]] = {
            "blend": lambda held: shown(left(experts, vector(held))),
            "mix": lambda held: held and shown(left(tasks, vector(held))),
            "sums": lambda held: held and shown(tasks(vector(held))),
            "reward": lambda held: held and shown(tasks(vector(held), np.nan)),
            "posterior": posterior,
            "task": tasks.kept.get,
            "lost": lambda held: bool(self.lost(vector(held))),
        }
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
            write.execute("UPDATE requests SET logits = NULL")  # late labels of these are refused


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
    moved, alike = Moved.of(old.tasks, tasks), np.full(len(old.tasks), 1.0 / len(old.tasks))
    for place in (place for place, name in enumerate(tasks) if name not in old.tasks):
        texts = [row.text for row in past if row.task == tasks[place]]
        near = moved(old.snapshot().recognise(texts).posteriors.mean(axis=0) if texts else alike)  # (V,)
        like = counts @ near  # (N,)
        some = np.minimum(like, NEAR_COUNT) / np.maximum(like, 1e-12)
        sums[:, place], counts[:, place] = (sums @ near) * some, like * some
        best = ", ".join(f"{tasks[v]} {near[v]:.0%}" for v in np.argsort(-near)[:3] if near[v] >= 0.01)
        few = f"as at most {NEAR_COUNT:.0f} requests a blend"
        say(f"{tasks[place]} starts from what like tasks have earned, {few}: {best or 'none'}")
