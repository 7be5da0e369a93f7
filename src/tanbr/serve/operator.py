"""What operators, and the guard in their place, may ask of the learner; each runs in the learner's thread."""

import numpy as np

from tanbr.errors import InputError
from tanbr.serve.admission import Choice
from tanbr.serve.choosing import Pin
from tanbr.serve.learner import Learner
from tanbr.serve.records import Reason, ServiceError
from tanbr.types import Blend


class Operator:
    """Pin, unpin, roll back, end the slot."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def end_slot(self) -> int:
        """End the slot now; the number of the next."""
        if not self._learner.turn():
            raise ServiceError(f"the slot goes on: {self._learner.alarms[0].text}")
        return self._learner.current.slot

    def pin(self, target: Blend | int) -> int:
        """Serve a blend (K,), or a version by its number, until `unpin`; its merge version."""
        blend, version = (self._blend_of(target), target) if isinstance(target, int) else (target, None)
        number = self._serve(Choice(blend, Reason.PINNED, "pinned", version))
        self._learner.set_pin(Pin(blend, number))
        return number

    def unpin(self) -> None:
        """Let the router choose again, from the next slot on."""
        self._learner.set_pin(None)

    def roll_back(self, version: int | None) -> int:
        """Serve an earlier version until the slot ends; the router hears that its choice was worthless."""
        now = self._learner.engine.version
        wanted = self._last_good() if version is None else version
        if wanted is None:
            raise InputError("there is no earlier good version to roll back to")
        blend = self._blend_of(wanted)
        if wanted == now:
            raise InputError(f"merge version {wanted} is the one that answers; choose another")
        if self._learner.pin is not None:
            self.unpin()
        note = f"rolled back by hand from {now}"
        return self._serve(Choice(blend, Reason.ROLLED_BACK, note, wanted), bad=now, worthless=True)

    def dismiss(self, version: int, why: str, *, worthless: bool = False) -> None:
        """Go back from a bad version to the last good one at once, and tell the router what it did."""
        learner = self._learner
        now = learner.engine.version
        learner.alarm(f"merge version {version} is rolled back: {why}")
        wanted = self._last_good() if now == version else now
        rows = {row["version"]: row["blend"] for row in learner.store.versions()}
        if wanted is None or wanted not in rows:
            learner.alarm("there is no earlier good version to roll back to: the bad one goes on answering")
            learner.guard.opened(same=False, bad=version, keep=learner.config.keep_versions)
            return
        choice = Choice(rows[wanted], Reason.ROLLED_BACK, f"rolled back: {why}", wanted)
        self._serve(choice, bad=version, worthless=worthless)

    def _serve(self, choice: Choice, *, bad: int | None = None, worthless: bool = False) -> int:
        done = self._learner.turn(choice, bad=bad, worthless=worthless)
        live = self._learner.engine.live
        if not done or live.blend is None or not np.array_equal(live.blend, choice.blend):
            raise ServiceError(f"merge version {live.version} goes on: {self._learner.alarms[0].text}")
        return live.version

    def _blend_of(self, version: int) -> Blend:
        rows = {row["version"]: row["blend"] for row in self._learner.store.versions()}
        if version not in rows:
            raise InputError(f"merge version {version} is not kept; choose one of {', '.join(map(str, sorted(rows)))}")
        blend: Blend = rows[version]
        return blend

    def _last_good(self) -> int | None:
        """The version to go back to: the one still in the spare buffer if it is good, or else the newest good one."""
        engine = self._learner.engine
        good = [row["version"] for row in self._learner.store.versions() if row["good"]]
        good = [version for version in good if version != engine.version]
        held = None if engine.held is None else engine.held.version
        return held if held in good else max(good, default=None)
