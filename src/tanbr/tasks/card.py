"""What a checkpoint says of itself, in `tanbr.json` beside its weights: its tasks, and which expert learned which.

`pretrain` writes it, and `tanbr card` from what a server has learned. Tasks, labels, scales, metrics and
the map from tasks to experts are read here and nowhere else.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tanbr.errors import CheckpointError
from tanbr.files import write_atomically
from tanbr.tasks.rows import Task

FILE = "tanbr.json"


@dataclass(frozen=True)
class Card:
    """A checkpoint's tasks (none if it does not say) and the task that each of its K experts was trained for."""

    tasks: tuple[Task, ...] = ()
    expert_tasks: tuple[str, ...] = ()  # (K,) but for a base; empty if experts belong to no task
    ancestor: str = ""  # folder of the dense model that an MoE was made from, seen from the checkpoint's own
    own_experts: dict[str, int] = field(default_factory=dict)  # task → the expert that practice found for it

    def experts_of(self, tasks: Sequence[str]) -> tuple[int, ...]:
        """Find each task's own expert, as found or as trained; none at all if the card does not say so of all."""
        known = {task: place for place, task in enumerate(self.expert_tasks)} | self.own_experts
        return tuple(known[task] for task in tasks) if set(tasks) <= set(known) else ()

    def of_experts(self, expert_tasks: Sequence[str], expert_labels: Sequence[Sequence[str]]) -> "Card":
        """Give the card of experts (K,) that were named beside it: their tasks, with the labels of each one's head."""
        if not expert_tasks:
            return self
        known = {task.name: task for task in self.tasks}
        of = zip(expert_tasks, expert_labels or [()] * len(expert_tasks), strict=False)  # the base has labels only
        tasks = tuple(
            known.get(name) or Task(name, ("accuracy",) if labels else (), tuple(labels)) for name, labels in of
        )
        return replace(self, tasks=tasks, expert_tasks=tuple(expert_tasks))


def read_card(checkpoint: Path) -> Card:
    """Read a checkpoint's card; an empty one if it has none."""
    path = checkpoint / FILE
    if not path.is_file():
        return Card()
    try:
        card = TypeAdapter(Card).validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{path} is no card of a checkpoint ({reason}); remove it, or write it anew") from None
    if min(card.own_experts.values(), default=0) < 0:
        raise CheckpointError(f"{path} numbers an expert below 0; own_experts counts them from 0")
    names = [task.name for task in card.tasks]
    if len(set(names)) != len(names) or len(set(card.expert_tasks)) != len(card.expert_tasks):
        raise CheckpointError(f"{path} names a task twice; every task has one name, and one expert of its own")
    return card


def card_text(card: Card) -> str:
    """Write a card as its file has it."""
    return json.dumps(asdict(card), indent=2, ensure_ascii=False) + "\n"


def write_card(checkpoint: Path, card: Card) -> Path:
    """Write a checkpoint's card into its folder."""
    return write_atomically(checkpoint / FILE, card_text(card))
