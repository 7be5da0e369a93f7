"""A tiny MoE whose experts share an ancestor, as merges want them."""

from pathlib import Path

import pytest
import torch

from moe.tiny import build, expert_values
from tanbr.merge import Moe
from tanbr.merge import open as open_moe


@pytest.fixture
def moe(request: pytest.FixtureRequest, tmp_path: Path) -> Moe:
    """A tiny checkpoint of a family: BERT-MoE, or the one that a test is parametrised by."""
    build(getattr(request, "param", "bert_moe")).save_pretrained(tmp_path / "moe")
    return open_moe(tmp_path / "moe")


@pytest.fixture(scope="session")
def related(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT-MoE of four experts, each near the first."""
    folder = tmp_path_factory.mktemp("related") / "moe"
    model = build("bert_moe")
    with torch.no_grad():
        for values in expert_values(model):
            values[1:] = values[0] + 0.2 * values[1:]
    model.save_pretrained(folder)
    return folder
