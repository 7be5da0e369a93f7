"""A run on disk: whatever ends it, it goes on from its state as if nothing had happened."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lab.train import small
from tanbr.errors import OutputError, StateError
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.run import Curve, Run

CONFIG = Tuning(warmup=2, save_every=4, log_every=2)


def run(state: Path, **options: Any) -> None:
    """Teach a small layer for 10 steps."""
    torch.manual_seed(0)
    options = {"config": CONFIG, "steps": 10, "report": lambda *_: None} | options
    device = options["config"].device
    model = nn.Linear(3, 2).to(device)

    def gradients(step: int) -> dict[str, float]:
        seen = torch.randn(5, 3, generator=torch.Generator().manual_seed(step)).to(device)
        loss = (model(seen) - seen[:, :2]).square().mean()
        loss.backward()
        return {"loss": loss.item()}

    groups = [{"params": list(model.parameters()), "lr": 0.1}]
    Run(phase="test", model=model, groups=groups, gradients=gradients, state=state, **options).train()


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    groups = [{"params": list(model.parameters()), "lr": 0.1}]
    with pytest.raises(StateError, match="the loss of test is nan at step 0; lower the rates"):
        Run("test", model, groups, lambda _: {"loss": math.nan}, 3, CONFIG, tmp_path / "state", lambda *_: None).train()
    assert not (tmp_path / "state").exists()


def test_a_torn_curve_is_mended_and_a_corrupt_state_refused(tmp_path: Path) -> None:
    run(tmp_path / "run.state")
    with (tmp_path / "run.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')
    run(tmp_path / "run.state", steps=12)
    assert Curve(tmp_path / "run.jsonl").series("loss")[0] == [2, 4, 6, 8, 10, 12]
    (tmp_path / "run.state").write_bytes((tmp_path / "run.state").read_bytes()[:200])
    with pytest.raises(StateError, match="is corrupt"):
        run(tmp_path / "run.state", steps=12)


def test_a_state_that_cannot_be_written_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = small.bert(tmp_path / "dense")
    with pytest.raises(small.Stopped):
        small.train(dense, tmp_path / "out", stop_at=("experts", 3))
    before = (tmp_path / "out/model.state").read_bytes()

    def full(_: Any, path: Path, **__: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tanbr.lab.train.run.save_file", full)
    with pytest.raises(OutputError, match="No space left on device"):
        small.train(dense, tmp_path / "out")
    assert (tmp_path / "out/model.state").read_bytes() == before
    assert not list((tmp_path / "out").glob("*.partial"))
    assert json.loads((tmp_path / "out/model.jsonl").read_text().splitlines()[0])["step"] == 1
