"""What a state was made for: checkpoint, merge method, experts, tasks. Others are refused, or adopt the state."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tanbr.errors import StateError
from tanbr.loop.config import RewardConfig
from tanbr.loop.rewards import Tally, Trust, credited
from tanbr.merge import Moe
from tanbr.serve.store import Store
from tanbr.types import FloatArray

SAMPLES, BLOCK = 256, 4096  # blocks of a file, and their bytes, that tell checkpoints apart
PRIOR_COUNT = 16.0  # requests, at most, that a reward earned with another checkpoint stands for


@dataclass(frozen=True)
class MadeFor:
    """What a state cannot do without."""

    tasks: tuple[str, ...]
    experts: int
    method: str
    checkpoint: str  # fingerprint of the weights


@dataclass(frozen=True, eq=False)
class Prior:
    """What an adopted state has learned, as far as it fits."""

    blends: FloatArray  # (n, K)
    rewards: FloatArray  # (n, V) NaN where unseen
    counts: FloatArray  # (n, V)
    keeps_monitor: bool  # whether the monitor knows the same tasks


def made_for(moe: Moe, tasks: Sequence[str]) -> MadeFor:
    """Say what a state of this checkpoint is made for."""
    digest = hashlib.sha256()
    for file in moe.checkpoint.files:  # a sample: it may have a hundred gigabytes, and training moves all of it
        size = file.path.stat().st_size
        digest.update(str(size).encode())
        with file.path.open("rb") as stream:
            for start in np.linspace(0, max(0, size - BLOCK), SAMPLES).astype(int).tolist():
                stream.seek(start)
                digest.update(stream.read(BLOCK))
    return MadeFor(tuple(tasks), moe.num_experts, str(moe.method), digest.hexdigest()[:32])


def same_lineage(store: Store, wanted: MadeFor, *, adopt: bool) -> bool:
    """Whether the state was made for what is wanted; if not it is refused, unless it is to be adopted."""
    text = store.meta("made_for")
    new = json.dumps(asdict(wanted))
    if text is None:
        store.set_meta("made_for", new)
        return True
    try:
        found = json.loads(text)
        odd = [name for name, value in json.loads(new).items() if found[name] != value]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise StateError(f"{store.folder} does not say what it was made for; restore it from a copy") from None
    if odd and not adopt:
        raise StateError(
            f"{store.folder} was made for {odd[0]} {found[odd[0]]}, not for {getattr(wanted, odd[0])}; give another "
            "--state, or --adopt to keep what was learned as a prior"
        )
    return not odd


def adopt_state(store: Store, wanted: MadeFor, *, config: RewardConfig) -> Prior:
    """Turn a state of another checkpoint into a prior; its slots and versions end, their numbers continue."""
    found = json.loads(store.meta("made_for"))
    alike = found.get("tasks") == list(wanted.tasks) and found.get("experts") == wanted.experts
    rows: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    if alike:
        for version in store.versions():
            rows.append((version["blend"], version["sums"], version["counts"]))
        for slot in store.untold():
            mix = slot["mix"] if slot["estimate"] is None else slot["estimate"]
            given, models = store.feedback(after=0, slot=slot["slot"]), slot["models"]
            none = [Tally(len(wanted.tasks)) for _ in models]
            for model, tally in zip(models, credited(none, given, mix, Trust()), strict=True):
                rows.append((model["blend"], *tally.weighted(config)))
    rows = [row for row in rows if (row[2] > 0).any()]
    K, V = wanted.experts, len(wanted.tasks)
    counts = np.array([row[2] for row in rows]).reshape(-1, V)
    sums = np.array([row[1] for row in rows]).reshape(-1, V)
    prior = Prior(
        blends=np.array([row[0] for row in rows]).reshape(-1, K),
        rewards=np.clip(np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0), 0.0, 1.0),
        counts=np.minimum(counts, PRIOR_COUNT),
        keeps_monitor=found.get("tasks") == list(wanted.tasks),
    )
    free = store.next_slot
    meta = {"made_for": json.dumps(asdict(wanted)), "mark": store.last_seq(), "guard": None, "pinned": None}
    with store.transaction(**meta) as write:
        write.execute("UPDATE slots SET told = 1")
        write.execute("DELETE FROM versions")
        if not alike:
            for table in ("requests", "feedback", "measured", "models"):
                write.execute(f"DELETE FROM {table}")  # noqa: S608 - four words
            write.execute("DELETE FROM slots WHERE slot < ?", (free - 1,))  # the last one keeps the numbers
            write.execute("INSERT OR REPLACE INTO meta VALUES ('oldest', ?)", (free,))
    if not alike:
        store.oldest = free
    return prior
