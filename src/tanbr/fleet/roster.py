"""The replicas that may be answering, as the learner's store remembers them, and who can say whether they live."""

import json
from collections.abc import Iterable
from typing import Protocol

from tanbr.errors import StateError
from tanbr.serve.store import Store

KEY = "fleet"


class Machine(Protocol):
    """What runs replicas: the only one who knows that one of them is dead."""

    def alive(self, member: str) -> bool:
        """Whether it may still answer anybody; True if that cannot be found out."""
        ...

    def end(self, member: str) -> None:
        """End it, at once; another may take its place."""
        ...


class Roster:
    """Names on disk, before their bearers answer: a learner that starts again knows whom it must wait for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> tuple[str, ...]:
        """List the replicas that the last learner let answer."""
        try:
            names = json.loads(self._store.meta(KEY) or "[]")
        except (ValueError, TypeError, RecursionError) as error:
            raise StateError(f"{self._store.folder} lists no replicas ({error}); restore it from a copy") from None
        return tuple(str(name) for name in names)

    def write(self, names: Iterable[str]) -> None:
        """Remember them; on disk when this returns."""
        self._store.set_meta(KEY, json.dumps(sorted(names)))
