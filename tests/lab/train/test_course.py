"""A phase trains once, and writes once."""

from pathlib import Path

import torch
from torch import nn

from lab.train import small
from tanbr.lab.train.batches import Batches
from tanbr.lab.train.course import Course
from tanbr.lab.train.objectives import Classification


def test_a_phase_that_is_done_is_neither_trained_nor_written_again(tmp_path: Path) -> None:
    objective = Classification(small.SPACE, small.ENCODER)
    batches = Batches(small.TRAIN, objective=objective, sizes=[1] * 3, seed=0)
    steps: list[int] = []
    written: list[Path] = []
    course = Course(batches, objective, small.CONFIG, lambda *_: None)

    def train() -> Path:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)

        def gradients(step: int) -> dict[str, float]:
            steps.append(step)
            loss = model(torch.ones(2)).sum()
            loss.backward()
            return {"loss": loss.item()}

        def write() -> Path:
            (tmp_path / "out").mkdir()
            written.append(tmp_path / "out")
            return tmp_path / "out"

        groups = [{"params": list(model.parameters()), "lr": 0.1}]
        return course.phase("test", model, groups, gradients, steps=3, origin="", out=tmp_path / "out", write=write)

    assert train() == train() == tmp_path / "out"
    assert steps == [0, 1, 2]
    assert len(written) == 1
