"""What a state was made for: checkpoint, merge method, experts, tasks. Others are refused, or adopt the state."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tanbr.errors import StateError
from tanbr.merge import Moe
from tanbr.serve.store import Store

SAMPLES, BLOCK = 256, 4096  # blocks of a file, and their bytes, that tell checkpoints apart
PRIOR_COUNT = 16.0  # requests, at most, that a reward earned with another checkpoint stands for


@dataclass(frozen=True)
class MadeFor:
    """What a state cannot do without."""

    tasks: tuple[str, ...]
    experts: int
    method: str
    checkpoint: str  # fingerprint of the weights


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


def adopt_state(store: Store, wanted: MadeFor, router: Any) -> bool:
    """Tell a router what a state of another checkpoint has earned; its slots and versions end, their numbers continue.

    Whether the state's monitor knows the same tasks.
    """
    found = json.loads(store.meta("made_for"))
    same_tasks = found.get("tasks") == list(wanted.tasks)
    alike = same_tasks and found.get("experts") == wanted.experts
    versions = [one for one in store.versions() if alike and (one["counts"] > 0).any()]
    if versions and hasattr(router, "warm_start"):
        blends, sums, counts = (np.array([one[name] for one in versions]) for name in ("blend", "sums", "counts"))
        rewards = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        router.warm_start(blends, np.clip(rewards, 0.0, 1.0), np.minimum(counts, PRIOR_COUNT))
    free = store.next_slot
    meta = {"made_for": json.dumps(asdict(wanted)), "mark": store.last_seq(), "guard": None, "pinned": None}
    with store.transaction(**meta) as write:
        write.execute("UPDATE slots SET told = 1")
        write.execute("DELETE FROM versions")
        if not alike:
            for table in ("requests", "feedback", "measured"):
                write.execute(f"DELETE FROM {table}")  # noqa: S608 - three words
            for table in ("slots", "models"):  # the last slot keeps the numbers
                write.execute(f"DELETE FROM {table} WHERE slot < ?", (free - 1,))  # noqa: S608 - two words
            write.execute("INSERT OR REPLACE INTO meta VALUES ('oldest', ?)", (free,))
    if not alike:
        store.oldest = free
    return bool(same_tasks)
