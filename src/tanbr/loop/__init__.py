"""The turn of a slot, once: serving, simulation, demo and tuning run it, each in a world of its own."""

from tanbr.loop.slot import Choice, Phase, Reason, Slot, Told, Turn, Version
from tanbr.loop.turn import Learner, World, observe, turn

__all__ = ["Choice", "Learner", "Phase", "Reason", "Slot", "Told", "Turn", "Version", "World", "observe", "turn"]
