"""What a state serves, taken away by the command: beside its server, after it, and with its experts moved about."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

import tanbr
from merge.sources.tiny_dense import adapter, family
from serve.serving import Run
from tanbr.cli import app
from tanbr.errors import InputError, StateError
from tanbr.merge import Moe
from tanbr.serve.config import ServeConfig
from tanbr.serve.export import served
from tanbr.serve.service import Service
from tanbr.tasks.card import read_card
from tanbr.tasks.rows import Task

BLEND = [0.5, 0.3, 0.2, 0, 0, 0, 0, 0]


def take(state: Path, out: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["export", str(out), "--state", str(state), *options])
    assert done.exit_code == 0, (done.output, done.exception)
    return " ".join(done.output.split())


def test_the_model_that_answers_is_written_beside_the_server_and_after_it(run: Run, moe: Moe, tmp_path: Path) -> None:
    live = run(tmp_path / "state")
    version = live.pin(BLEND)
    said = take(tmp_path / "state", tmp_path / "beside")
    assert f"merge version {version} of slot {live.state().slot}" in said
    live.stop()
    before = {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir()}
    take(tmp_path / "state", tmp_path / "after")
    assert {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir()} == before
    wanted = moe.dense(BLEND).state_dict()
    for name in ("beside", "after"):
        found = AutoModelForSequenceClassification.from_pretrained(tmp_path / name).state_dict()
        assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
    assert json.loads((tmp_path / "after" / "certificate.json").read_text())["blend"] == BLEND
    assert {task.name for task in read_card(tmp_path / "after").tasks} == set(live.info.tasks)
    about = (tmp_path / "after" / "README.md").read_text()
    assert f"| {read_card(moe.path).expert_tasks[0]} | 0.5000 |" in about
    assert f"merge version {version}" in about


def test_of_a_panel_one_model_is_written(run: Run, tmp_path: Path) -> None:
    live = run(tmp_path / "state", router=None, models=2, explore="never", blend="proportional", own_experts=range(8))
    live.end_slot()
    models = live.state().models
    live.stop()
    assert len(models) == 2
    said = take(tmp_path / "state", tmp_path / "second", "--model", "2")
    assert f"model 2 of 2, merge version {models[1].merge_version}" in said
    assert f"it answers {', '.join(models[1].tasks)}" in said
    blend = json.loads((tmp_path / "second" / "certificate.json").read_text())["blend"]
    np.testing.assert_array_equal(blend, models[1].blend)
    with pytest.raises(InputError, match="--model must be from 1 to 2"):
        served(tmp_path / "state", number=3)


def test_experts_are_found_by_name_and_must_be_what_they_were(tmp_path: Path) -> None:
    base, experts = family(tmp_path, "BertForSequenceClassification")
    names = [one.name for one in experts]
    listed = tmp_path / "experts.toml"
    listed.write_text(f'base = "{base.name}"\nexperts = {json.dumps(names)}\n')
    config = ServeConfig(slot_seconds=3600, threads=1, blend=(0.7, 0.3, 0.0))
    with pytest.raises(StateError, match="holds no state"):
        served(tmp_path / "state")
    Service(tanbr.open(listed), tasks=[Task("a", ())], config=config, state=tmp_path / "state").stop()
    listed.write_text(f'base = "{base.name}"\nexperts = {json.dumps(names[::-1])}\n')
    assert served(tmp_path / "state").blend.tolist() == [0.0, 0.3, 0.7]
    unused, used = experts[2] / "model.safetensors", experts[0] / "model.safetensors"
    unused.write_bytes((base / "model.safetensors").read_bytes())
    served(tmp_path / "state")
    used.write_bytes((base / "model.safetensors").read_bytes())
    with pytest.raises(StateError, match=r"experts\.toml have changed since the server read them"):
        served(tmp_path / "state")


def test_a_blend_of_adapters_is_written_as_one(tmp_path: Path) -> None:
    base, _ = family(tmp_path, "BertForSequenceClassification")
    modules = ["bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.1.output.dense"]
    experts = [adapter(tmp_path / name, base, modules, seed=k) for k, name in enumerate(("one", "two"))]
    config = ServeConfig(slot_seconds=3600, threads=1, blend=(0.75, 0.25))
    moe = tanbr.open(base, experts=experts)
    Service(moe, tasks=[Task("a", ())], config=config, state=tmp_path / "state").stop()
    assert "one adapter" in take(tmp_path / "state", tmp_path / "joined", "--as-adapter")
    again = tanbr.open(base, experts=[tmp_path / "joined", experts[0]]).dense([1, 0]).state_dict()
    for name, tensor in moe.dense([0.75, 0.25]).state_dict().items():
        torch.testing.assert_close(again[name], tensor)
    assert json.loads((tmp_path / "joined" / "certificate.json").read_text())["blend"] == [0.75, 0.25]
    about = (tmp_path / "joined" / "README.md").read_text()
    assert "library_name: peft" in about
    assert "| two | 0.2500 |" in about
