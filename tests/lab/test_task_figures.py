import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tanbr.errors import CheckpointError
from tanbr.lab.task_figures import figures, own_experts
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe

NAMES = [task.name for task in tiny.TASKS]


def test_the_card_says_which_expert_is_whose(moe: Moe) -> None:
    assert own_experts(moe, NAMES) == tuple(range(8))
    assert own_experts(moe, ["weather"]) == ()


def test_a_card_that_names_more_experts_than_there_are_is_refused(moe: Moe, tmp_path: Path) -> None:
    card = json.loads((Path(moe.path) / "tanbr.json").read_text())
    (tmp_path / "tanbr.json").write_text(json.dumps(card))
    few: Any = SimpleNamespace(path=tmp_path, num_experts=2, source=moe.source)
    with pytest.raises(CheckpointError, match="names a task for expert 7 of 2; mend it"):
        own_experts(few, NAMES)


def test_every_task_is_scored_by_its_own_rows() -> None:
    objective: Any = SimpleNamespace(figure=lambda model, rows: len(rows) / 10)
    assert figures(None, objective, {"a": [None] * 3, "b": [None] * 5}) == {"a": 0.3, "b": 0.5}  # type: ignore[list-item]
