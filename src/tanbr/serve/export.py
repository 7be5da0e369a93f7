"""What a state serves, to take away: read beside a running server or after it, with nothing in the state changed."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from tanbr.errors import InputError, StateError
from tanbr.loop.practice import FEW, READY
from tanbr.loop.slot import Slot
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.export import About
from tanbr.serve.check import measured_in
from tanbr.serve.journal import read_practice, read_slot
from tanbr.serve.lineage import Adoption, MadeFor, expert_names, made_for, read_made_for
from tanbr.serve.records import WorthView
from tanbr.serve.store import peek, reading
from tanbr.tasks.card import FILE, Card, card_text, read_card
from tanbr.types import Blend


@dataclass(frozen=True, eq=False)
class Served:
    """One of the models that a state's open slot serves."""

    moe: Moe
    blend: Blend  # (K,)
    slot: Slot
    number: int  # among the slot's models, from 1
    made_for: MadeFor

    @property
    def title(self) -> str:
        """Say which one it is."""
        models = f"model {self.number} of {len(self.slot.versions)}, " if len(self.slot.versions) > 1 else ""
        return f"{models}merge version {self.slot.versions[self.number - 1]} of slot {self.slot.number}"

    @property
    def tasks(self) -> list[str]:
        """The tasks whose requests it answers."""
        to = self.slot.panel.task_models
        return [name for name, place in zip(self.made_for.tasks, to, strict=True) if place == self.number - 1]

    @property
    def card(self) -> Card:
        """What is said of its experts."""
        source = self.moe.source
        return read_card(self.moe.path).of_experts(source.expert_tasks, source.expert_labels)

    @property
    def about(self) -> About:
        """What its files say of it, with a card of its tasks where they are known."""
        known = tuple(task for task in self.card.tasks if task.name in self.made_for.tasks)
        note = f"It is what a tanbr server served as {self.title}, for {', '.join(self.tasks) or 'no task'}."
        return About(expert_names(self.moe), note, {FILE: card_text(Card(known))} if known else {})


def served(state: Path, *, number: int = 1) -> Served:
    """Find the model that answers now, of a panel one by its number; its experts must be as the server read them."""
    with peek(state) as store:
        made, text, rows = read_made_for(store), store.meta("origin"), store.slots(limit=1)
    if made is None or not rows:
        raise StateError(f"{state} has served nothing yet; start a server on it first")
    slot = read_slot(rows[0], experts=len(made.experts), tasks=len(made.tasks))
    if number > len(slot.versions):
        models = len(slot.versions)
        raise InputError(f"--model must be from 1 to {models}, as many as {state} serves side by side (got {number})")
    with reading(state):
        origin = json.loads(text)
    moe = open_moe(**origin, method="average")
    if made.method != "average":
        moe.source.measured = measured_in(state, moe)
        moe = Moe(moe.source, method=made.method)
    change = Adoption(made, made_for(moe, made.tasks))
    blend = slot.blends[number - 1]
    if not change.exact or change.lost(blend):
        raise StateError(f"the experts in {origin['path']} have changed since the server read them; put them back")
    return Served(moe, change.experts(blend), slot, number, made)


def learned_card(state: Path) -> tuple[Card, MadeFor, dict[str, WorthView]]:
    """Put each task's own expert, as a state's practice found it, on the card; what was found, by the tasks' names."""
    one = served(state)
    made = one.made_for
    with peek(state) as store:
        found = read_practice(store)
    done = 0 if found is None else found.exercises
    if found is None or (done < READY and all(of.expert is None for of in found.tasks)):
        said = f"{state} has practised too little yet ({done} exercises of {READY})"
        raise StateError(f"{said}; serve on, and send labels, or rewards of 0 and 1")
    worth = dict(zip(made.tasks, found.tasks, strict=True))
    few = [f"{name} has {of.rows}" for name, of in worth.items() if of.rows < FEW or of.expert is None]
    if few:
        raise StateError(
            f"{state} needs {FEW} practised rows of a task to know its expert ({', '.join(few)}); send labels"
        )
    own = {name: of.expert for name, of in worth.items() if of.expert is not None}
    return replace(one.card, own_experts=own), made, worth
