"""K dense views compute and learn what the MoE does that is routed by task."""

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel

from lab.train import small
from tanbr.errors import ConfigError
from tanbr.lab.tasks import glue
from tanbr.lab.train.checkpoints import card_of, load, prepare, upcycled
from tanbr.lab.train.expert_views import LIST, ExpertViews
from tanbr.lab.train.objectives import Objective, objective_of
from tanbr.merge import open as open_moe
from tanbr.moe.layer import BlendRouting, TaskRouting, routed
from tanbr.tasks.card import read_card
from tanbr.types import FloatArray


@pytest.fixture(params=["bert", "t5"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    dense = small.DENSE[request.param](tmp_path / "dense")
    return prepare(dense, small.SPACE, tmp_path / "start", max_length=16, seed=0)


def objective(start: Path) -> Objective:
    return objective_of(load(start).config, small.SPACE, small.ENCODER)


def apart(experts: ExpertViews) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in experts.experts.parameters():
            weight += 0.1 * torch.randn(weight.shape)


EXACT = {"rtol": 1e-9, "atol": 1e-12}  # float64: sums of some thousand products, each with an error of 1.1e-16


@pytest.mark.parametrize("blends", [None, np.random.default_rng(0).dirichlet(np.ones(3), 3)])
def test_gradients_are_those_of_the_moe_that_is_routed_so(start: Path, blends: FloatArray | None) -> None:
    goal, experts = objective(start), ExpertViews(load(start).double(), experts=3)
    apart(experts)
    moe = upcycled(start, experts=3).double()
    weights = {name: torch.stack([experts.weights(k)[name].detach() for k in range(3)]) for name in experts.names}
    moe.load_state_dict(weights, strict=False)
    for v, task in enumerate(small.TASKS):
        batch = goal.encode(small.TRAIN[task.name][:4])
        blend = None if blends is None else blends[v]
        loss = goal.row_losses(experts.view(v, blend), batch).mean()
        loss.backward()
        routing = TaskRouting(torch.full((4,), v)) if blend is None else BlendRouting(torch.from_numpy(blend))
        with routed(moe, routing):
            same = goal.row_losses(moe, batch).mean()
        same.backward()
        torch.testing.assert_close(loss, same, **EXACT)
    for name in experts.names:
        stacked = torch.stack([experts.weights(k)[name].grad for k in range(3)])
        torch.testing.assert_close(stacked, moe.get_parameter(name).grad, **EXACT)
        assert experts.dense.get_parameter(name).grad is None
    for name, weight in experts.shared().items():
        torch.testing.assert_close(weight.grad, moe.get_parameter(name).grad, **EXACT)


def test_what_is_written_answers_as_the_views_do(start: Path, tmp_path: Path) -> None:
    goal, experts = objective(start), ExpertViews(load(start), experts=3)
    apart(experts)
    tasks = [task for name in ("RTE", "CoLA", "MRPC") for task in glue.TASKS if task.name == name]
    folder = experts.export(start, tmp_path / "moe", tasks=tasks)
    moe, merged = load(folder).double(), open_moe(folder)
    experts.double()
    assert read_card(folder).experts_of(["CoLA", "RTE"]) == (1, 0)
    assert read_card(folder).experts_of(["CoLA", "SST-2"]) == ()
    batch = goal.encode(small.HELD["RTE"])
    with torch.no_grad():
        for k in range(3):
            with routed(moe, TaskRouting(torch.full((len(batch),), k))):
                losses = goal.row_losses(moe, batch), goal.row_losses(experts.view(k), batch)
            torch.testing.assert_close(*losses, **EXACT)
            alone = merged.dense([float(k == other) for other in range(3)]).double()
            torch.testing.assert_close(goal.row_losses(alone, batch), goal.row_losses(experts.view(k), batch), **EXACT)
    assert (tmp_path / "moe" / "tokenizer.json").exists()


CONFIG = small.CONFIG.model_copy(update={"adapters": 2, "adapter_rate": 0.05})


def test_the_list_opens_and_one_expert_alone_is_what_peft_makes_of_it(tmp_path: Path) -> None:
    found = small.train(small.bert(tmp_path / "dense"), tmp_path, config=CONFIG)
    assert found == tmp_path / "adapters" / LIST
    moe = open_moe(found)
    names = card_of(moe).expert_tasks
    assert set(names) == set(small.TRAIN)
    assert {task.name for task in card_of(moe).tasks} == set(names)
    inputs = small.ENCODER(["w1 w2", "w3"])
    for k, name in enumerate(names):
        model = PeftModel.from_pretrained(load(tmp_path / "ancestor"), str(found.parent / name)).double().eval()
        with torch.no_grad():
            expected = model(**inputs).logits
            actual = moe.dense(np.eye(len(names))[k]).double()(**inputs).logits
        # the merge rounds W + s B A to float32 once: 2^-24 of every weight, through a network of a few layers
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_adapters_are_trained_alone_and_each_for_its_task(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"mergeable": 0.5})
    with pytest.raises(ConfigError, match="leave out mergeable, or adapters"):
        small.train(small.bert(tmp_path / "dense"), tmp_path / "out", config=config)
    with pytest.raises(ConfigError, match="leave out --routing token, or adapters"):
        small.train(tmp_path / "dense", tmp_path / "out", config=CONFIG, routing="token")
    assert not (tmp_path / "out").exists()
