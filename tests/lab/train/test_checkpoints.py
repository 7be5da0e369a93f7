"""Dense checkpoints that training can start from, and those that it cannot."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.train import small
from tanbr.errors import CheckpointError
from tanbr.lab.tasks import tiny
from tanbr.lab.train.checkpoints import own_experts, prepare
from tanbr.merge import Moe


def test_what_cannot_be_trained_from(tmp_path: Path) -> None:
    def start(dense: Path) -> None:
        prepare(dense, small.SPACE, tmp_path / "start", max_length=16, seed=0)

    with pytest.raises(CheckpointError, match="nowhere"):
        start(tmp_path / "nowhere")
    dense = small.bert(tmp_path / "bert")
    small.tokenizer(words=[f"v{i}" for i in range(100)]).save_pretrained(dense)
    with pytest.raises(CheckpointError, match=r"tokenizer in .* has 103 words but the model only 64"):
        start(dense)
    (dense / "config.json").write_text((dense / "config.json").read_text().replace('"bert"', '"roberta"'))
    with pytest.raises(CheckpointError, match="must be a BERT or a T5"):
        start(dense)
    assert not (tmp_path / "start").exists()


def test_a_card_that_names_more_experts_than_there_are_is_refused(moe: Moe, tmp_path: Path) -> None:
    card = json.loads((Path(moe.path) / "tanbr.json").read_text())
    (tmp_path / "tanbr.json").write_text(json.dumps(card))
    few: Any = SimpleNamespace(path=tmp_path, num_experts=2, source=moe.source)
    with pytest.raises(CheckpointError, match="names a task for expert 7 of 2; mend it"):
        own_experts(few, [task.name for task in tiny.TASKS])
