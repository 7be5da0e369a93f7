"""Gates and experts learn together; experts belong to no task, and the checkpoint does not say they do."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lab.train import small
from tanbr.lab.gates import Gated
from tanbr.lab.rivals.rl import Reinforce
from tanbr.lab.rivals.switch import Switch
from tanbr.tasks.card import read_card


def test_gates_learn_with_token_routing_and_resume(tmp_path: Path) -> None:
    dense = small.bert(tmp_path / "dense")
    whole = load_file(small.train(dense, tmp_path / "whole", gates=Switch) / "model.safetensors")
    with pytest.raises(small.Stopped):
        small.train(dense, tmp_path / "halved", gates=Switch, stop_at=("gates", 3))
    again = load_file(small.train(dense, tmp_path / "halved", gates=Switch) / "model.safetensors")
    for name, value in whole.items():
        assert torch.equal(value, again[name]), name
    assert json.loads((tmp_path / "whole/model/config.json").read_text())["router"]
    assert any(name.endswith("gate.weight") for name in whole)
    card = read_card(tmp_path / "whole/model")
    assert {task.name for task in card.tasks} == set(small.TRAIN)
    assert card.expert_tasks == ()


@pytest.mark.parametrize("gates", [Switch, Reinforce])
def test_gates_are_the_same_elsewhere(gates: type[Gated], tmp_path: Path) -> None:
    dense = small.bert(tmp_path / "dense")
    small.elsewhere_too(tmp_path, lambda config, out: small.train(dense, out, config=config, gates=gates))
