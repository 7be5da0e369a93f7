"""What operators, and the guard in their place, may ask of the learner; each runs in the learner's thread."""

from dataclasses import replace

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
        number = self._serve(Choice.one(blend, Reason.PINNED, "pinned", version))
        self._learner.set_pin(Pin(blend, number))
        return number

    def unpin(self) -> None:
        """Let the router choose again, from the next slot on."""
        self._learner.set_pin(None)

    def roll_back(self, version: int | None) -> int:
        """Serve an earlier version, or one of a panel, alone until the slot ends.

        The router hears that the other choices were worthless.
        """
        now = tuple(one.version for one in self._learner.engine.lineup.models)
        wanted = self._last_good() if version is None else version
        if wanted is None:
            raise InputError("there is no earlier good version to roll back to")
        blend = self._blend_of(wanted)
        if (wanted,) == now:
            raise InputError(f"merge version {wanted} is the one that answers; choose another")
        if self._learner.pin is not None:
            self.unpin()
        note = f"rolled back by hand from {', '.join(map(str, now))}"
        bad = tuple(version for version in now if version != wanted)
        return self._serve(Choice.one(blend, Reason.ROLLED_BACK, note, wanted), bad=bad, worthless=True)

    def dismiss(self, version: int, why: str, *, worthless: bool = False) -> None:
        """Go back from a bad version at once, to the others of its panel or to the last good one; the router hears."""
        learner, note = self._learner, f"rolled back: {why}"
        if version not in learner.current.versions:
            return  # it went already: several workers may find the same version broken
        learner.alarm(f"merge version {version} is rolled back: {why}")
        choice = None if (kept := learner.kept()) is None else _without(kept, version)
        if choice is None:
            wanted = self._last_good()
            rows = {row["version"]: row["blend"] for row in learner.store.versions()}
            if wanted is None or wanted not in rows:
                learner.alarm("there is no earlier good version to roll back to: the bad one goes on answering")
                learner.guard.opened((version,), bad=(version,), keep=learner.config.keep_versions)
                return
            choice = Choice.one(rows[wanted], Reason.ROLLED_BACK, note, wanted)
        self._serve(replace(choice, reason=Reason.ROLLED_BACK, note=note), bad=(version,), worthless=worthless)

    def _serve(self, choice: Choice, *, bad: tuple[int, ...] = (), worthless: bool = False) -> int:
        done = self._learner.turn(choice, bad=bad, worthless=worthless)
        models = self._learner.engine.lineup.models
        served = [one.blend.tobytes() for one in models if one.blend is not None]
        if not done or served != [blend.tobytes() for blend in choice.blends]:
            raise ServiceError(f"merge version {models[0].version} goes on: {self._learner.alarms[0].text}")
        return models[0].version

    def _blend_of(self, version: int) -> Blend:
        rows = {row["version"]: row["blend"] for row in self._learner.store.versions()}
        if version not in rows:
            raise InputError(f"merge version {version} is not kept; choose one of {', '.join(map(str, sorted(rows)))}")
        blend: Blend = rows[version]
        return blend

    def _last_good(self) -> int | None:
        """The version to go back to: one that is still in a buffer if it is good, or else the newest good one."""
        engine = self._learner.engine
        now = [one.version for one in engine.lineup.models]
        good = [row["version"] for row in self._learner.store.versions() if row["good"] and row["version"] not in now]
        held = [one.version for one in engine.held if one.version in good]
        return held[-1] if held else max(good, default=None)


def _without(kept: Choice, version: int) -> Choice | None:
    """Leave a version out of what answers; None if nothing is left."""
    rows = [row for row, number in enumerate(kept.versions) if number != version]
    if not rows:
        return None
    estimates = None if kept.estimates is None or len(rows) == 1 else kept.estimates[rows]
    return replace(kept, blends=kept.blends[rows], versions=tuple(kept.versions[r] for r in rows), estimates=estimates)
