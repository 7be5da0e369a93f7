"""What a state was made for: checkpoint, merge method, experts, tasks. Others are refused, or adopt it (`adopt.py`)."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from tanbr.errors import StateError
from tanbr.merge import Moe
from tanbr.merge.export import public_name
from tanbr.merge.sources.heads import labels_of
from tanbr.serve.store import FILE, Store, StoreReader, peek, reading
from tanbr.tasks.card import read_card

SAMPLES, BLOCK = 256, 4096  # blocks of a file, and their bytes, that tell checkpoints apart


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


def lineage(store: Store, wanted: MadeFor, *, adopt: bool) -> MadeFor:
    """Give what the state was made for, if that is what is wanted (a new one is), or if it is to be adopted."""
    found = read_made_for(store)
    if found is None or store.next_slot == 0:  # what was begun and could not start binds nobody
        with store.transaction(made_for=json.dumps(asdict(wanted)), way=None):  # nor is it known how its model runs
            pass
        return wanted
    if found != wanted and not adopt:
        name = next(name for name in asdict(found) if getattr(found, name) != getattr(wanted, name))
        old, new = (", ".join(v) if isinstance(v := getattr(one, name), tuple) else v for one in (found, wanted))
        changed = [one for one, *own in zip(found.experts, found.own, wanted.own, strict=False) if len(set(own)) > 1]
        said = f"{name} {old}, not for {new}"
        if name == "checkpoint" and changed:
            said = f"other weights of {', '.join(changed)}"
        raise StateError(
            f"{store.folder} was made for {said}; give another --state, or --adopt to keep what was learned as a prior"
        )
    return found
