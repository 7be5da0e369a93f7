"""Training from a dense checkpoint, end to end on tiny models; interrupted, it ends in the same weights."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elsewhere import elsewhere
from lab.train import small
from tanbr.errors import ConfigError, StateError
from tanbr.lab.tasks import glue
from tanbr.lab.train.pretrain import Routing, train_from_dense
from tanbr.lab.train.run import Curve
from tanbr.tasks.card import read_card


@pytest.mark.parametrize(
    ("kind", "stop_at"), [("bert", ("ancestor", 3)), ("bert", ("experts", 5)), ("t5", ("experts", 5))]
)
def test_an_interrupted_run_ends_in_the_same_weights_and_curve(
    kind: str, stop_at: tuple[str, int], tmp_path: Path
) -> None:
    dense = small.DENSE[kind](tmp_path / "dense")
    whole = small.train(dense, tmp_path / "whole")
    with pytest.raises(small.Stopped):
        small.train(dense, tmp_path / "halved", stop_at=stop_at)
    halved = small.train(dense, tmp_path / "halved")
    weights, again = (load_file(folder / "model.safetensors") for folder in (whole, halved))
    assert weights.keys() == again.keys()
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name
    assert (tmp_path / "whole/model.jsonl").read_text() == (tmp_path / "halved/model.jsonl").read_text()
    assert Curve(tmp_path / "whole/model.jsonl").series("RTE")[0] == [1, 2, 3, 4, 5, 6]
    frozen = "bert.embeddings.word_embeddings.weight" if kind == "bert" else "shared.weight"
    assert torch.equal(weights[frozen], load_file(dense / "model.safetensors")[frozen.removeprefix("bert.")])
    experts = next(value for name, value in weights.items() if value.dim() == 3)
    assert not torch.equal(experts[0], experts[1])
    ancestor = load_file(tmp_path / "whole/ancestor/model.safetensors")
    moved = [name for name, value in weights.items() if value.dim() == 2 and not torch.equal(value, ancestor[name])]
    assert moved  # what is shared went on learning
    assert small.train(dense, tmp_path / "whole") == whole  # finished: nothing to do
    other = small.DENSE[kind](tmp_path / "other", seed=1)
    with pytest.raises(StateError, match="from another checkpoint"):
        small.train(other, tmp_path / "whole")


@pytest.mark.parametrize(
    ("kind", "routing", "phase", "figures"),
    [
        ("bert", "token", "gates", {"average", "gates"}),
        ("t5", "token", "gates", {"average", "gates"}),
        ("bert", "none", "dense", {"dense"}),
        ("t5", "none", "dense", {"dense"}),
    ],
)
def test_experts_of_no_task_and_one_dense_model_learn_too(
    kind: str, routing: Routing, phase: str, figures: set[str], tmp_path: Path
) -> None:
    dense = small.DENSE[kind](tmp_path / "dense")
    whole, found = train_from_dense(
        small.CONFIG, dense=dense, rows=small.TRAIN, unseen=small.HELD, out=tmp_path / "whole",
        report=lambda *_: None, tasks=glue.TASKS, routing=routing,
    )  # fmt: skip
    assert set(found) == figures
    with pytest.raises(small.Stopped):
        small.train(dense, tmp_path / "halved", routing=routing, stop_at=(phase, 5))
    halved = small.train(dense, tmp_path / "halved", routing=routing)
    weights, again = (load_file(folder / "model.safetensors") for folder in (whole, halved))
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    card = read_card(whole)
    assert {task.name for task in card.tasks} == set(small.TRAIN)
    assert card.expert_tasks == ()  # a router finds out what they are good for
    ancestor = load_file(tmp_path / "whole/ancestor/model.safetensors")
    assert any(not torch.equal(weights[name], value) for name, value in ancestor.items())
    experts = [weights[name] for name, value in ancestor.items() if weights[name].dim() > value.dim()]
    assert any(not torch.equal(one[0], one[1]) for one in experts) is (routing == "token")
    with pytest.raises(StateError, match="other settings"):
        small.train(dense, tmp_path / "whole")  # routed by task


def test_a_run_may_start_from_the_ancestor_of_another(tmp_path: Path) -> None:
    dense = small.bert(tmp_path / "dense")
    one = small.train(dense, tmp_path / "one")
    shutil.copytree(tmp_path / "one/ancestor", tmp_path / "two/ancestor")
    two = small.train(dense, tmp_path / "two")
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_products_in_bfloat16_are_near_and_a_state_goes_on_in_float32(tmp_path: Path) -> None:
    dense = small.bert(tmp_path / "dense")
    fast = small.CONFIG.model_copy(update={"precision": "bfloat16"})
    with pytest.raises(small.Stopped):
        small.train(dense, tmp_path / "fast", config=fast, stop_at=("experts", 5))
    small.train(dense, tmp_path / "exact")
    curve, exact = (Curve(tmp_path / name / "ancestor.jsonl").series("RTE")[1] for name in ("fast", "exact"))
    assert curve != exact
    np.testing.assert_allclose(curve, exact, rtol=2**-5)  # bfloat16 rounds to 2^-9 of a value; two layers, four steps
    weights = load_file(small.train(dense, tmp_path / "fast") / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32}


def test_rows_of_a_task_that_is_not_trained_are_refused(tmp_path: Path) -> None:
    config = small.CONFIG.model_copy(update={"task_rows": {"b": 5}})
    with pytest.raises(ConfigError, match=r"task_rows must name tasks that are trained: RTE, SST-2, STS-B \(got 'b'\)"):
        small.train(small.bert(tmp_path / "dense"), tmp_path / "out", config=config)


def test_an_ancestor_goes_on_when_settings_of_the_experts_change(tmp_path: Path) -> None:
    dense = small.bert(tmp_path / "dense")
    with pytest.raises(small.Stopped):
        small.train(dense, tmp_path / "out", stop_at=("ancestor", 3))
    with pytest.raises(StateError, match="other settings"):
        small.train(dense, tmp_path / "out", config=small.CONFIG.model_copy(update={"ancestor_rate": 1e-5}))
    changes = {"steps": 2, "mergeable": 0.5, "ancestor_steps": 5}
    changed = small.CONFIG.model_copy(update=changes)
    again = small.train(dense, tmp_path / "out", config=changed)
    whole = small.train(dense, tmp_path / "whole", config=changed)
    assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


FFNS = {  # of layers that stay with frozen_layers = 1, and of others that learn
    "bert": ("bert.encoder.layer.0.intermediate.dense.weight", "bert.encoder.layer.1.intermediate.dense.weight"),
    "t5": ("encoder.block.0.layer.1.DenseReluDense.wo.weight", "decoder.block.0.layer.2.DenseReluDense.wo.weight"),
}


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_the_lowest_layers_stay_and_there_all_experts_are_equal(kind: str, tmp_path: Path) -> None:
    config = small.CONFIG.model_copy(update={"frozen_layers": 1, "train_embeddings": True})
    dense = small.DENSE[kind](tmp_path / "dense")
    weights = load_file(small.train(dense, tmp_path / "out", config=config) / "model.safetensors")
    ancestor = load_file(tmp_path / "out/ancestor/model.safetensors")
    for name, equal in zip(FFNS[kind], (True, False), strict=True):
        assert all(torch.equal(expert, ancestor[name]) is equal for expert in weights[name]), name
    embeddings = "bert.embeddings.word_embeddings.weight" if kind == "bert" else "shared.weight"
    assert torch.equal(weights[embeddings], ancestor[embeddings])


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_weights_are_the_same_elsewhere(kind: str, tmp_path: Path) -> None:
    dense = small.DENSE[kind](tmp_path / "dense")
    config = small.CONFIG.model_copy(update={"mergeable": 0.5})
    with elsewhere() as device:
        here = small.train(dense, tmp_path / "here", config=config)
        there = small.train(dense, tmp_path / "there", config=config.model_copy(update={"device": str(device)}))
    one, other = (load_file(folder / "model.safetensors") for folder in (here, there))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
