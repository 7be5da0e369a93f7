"""K dense views compute and learn what the MoE does that is routed by task."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from lab.train import small
from tanbr.lab.tasks import glue
from tanbr.lab.train.checkpoints import load, prepare, upcycled
from tanbr.lab.train.expert_views import ExpertViews
from tanbr.lab.train.objectives import Batch, Objective, objective_of
from tanbr.merge import open as open_moe
from tanbr.moe.layer import TaskRouting, routed
from tanbr.tasks.card import read_card


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


def mean(goal: Objective, batch: Batch) -> Callable[[Any], Tensor]:
    return lambda view: goal.row_losses(view, batch).mean()


def test_gradients_are_those_of_the_moe_routed_by_task(start: Path) -> None:
    goal, experts = objective(start), ExpertViews(load(start).double(), experts=3)
    batches = [goal.encode(small.TRAIN[task.name][:4]) for task in small.TASKS]
    with ThreadPoolExecutor(2) as workers:
        experts.backward([(v, mean(goal, batch)) for v, batch in enumerate(batches)], workers=workers)
    moe = upcycled(start, experts=3).double()
    for v, batch in enumerate(batches):
        with routed(moe, TaskRouting(torch.full((4,), v))):
            goal.row_losses(moe, batch).mean().backward()
    for name in experts.names:
        stacked = torch.stack([experts.weights(k)[name].grad for k in range(3)])
        torch.testing.assert_close(stacked, moe.get_parameter(name).grad, **EXACT)
    for name, weight in experts.shared().items():
        torch.testing.assert_close(weight.grad, moe.get_parameter(name).grad, **EXACT)


def test_a_blends_gradients_are_those_of_the_weighted_sum_of_experts(start: Path) -> None:
    goal, experts = objective(start), ExpertViews(load(start).double(), experts=3)
    apart(experts)
    batches = [goal.encode(small.TRAIN[task.name][:4]) for task in small.TASKS]
    blends = np.random.default_rng(0).dirichlet(np.ones(3), 3)
    with ThreadPoolExecutor(2) as workers:
        losses = [(v, mean(goal, batch)) for v, batch in enumerate(batches)]
        values = experts.backward(losses, workers=workers, blends=blends)
    found = {name: weight.grad for name, weight in experts.named_parameters()}
    experts.zero_grad()
    for value, batch, blend in zip(values, batches, blends, strict=True):
        merged = {
            name: sum(share * experts.weights(k)[name] for k, share in enumerate(blend)) for name in experts.names
        }
        loss = mean(goal, batch)(lambda merged=merged, **inputs: functional_call(experts.dense, merged, (), inputs))
        assert loss.item() == pytest.approx(value, rel=1e-12)
        loss.backward()
    assert {name for name, gradient in found.items() if gradient is None} == {f"dense.{name}" for name in experts.names}
    for name, weight in experts.named_parameters():
        if found[name] is not None:
            torch.testing.assert_close(found[name], weight.grad, **EXACT)


def test_a_one_hot_blend_is_the_expert_alone(start: Path) -> None:
    goal, experts = objective(start), ExpertViews(load(start).double(), experts=3)
    apart(experts)
    losses = [(1, mean(goal, goal.encode(small.TRAIN["SST-2"][:4])))]
    with ThreadPoolExecutor(1) as workers:
        alone = experts.backward(losses, workers=workers)
        assert experts.backward(losses, workers=workers, blends=np.eye(3)[[1]]) == alone


def test_what_is_written_answers_as_the_views_do(start: Path, tmp_path: Path) -> None:
    goal, experts = objective(start), ExpertViews(load(start), experts=3)
    apart(experts)
    folder = experts.export(
        start,
        tmp_path / "moe",
        tasks=[task for name in ("RTE", "CoLA", "MRPC") for task in glue.TASKS if task.name == name],
    )
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
