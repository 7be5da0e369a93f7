"""K dense views compute and learn what the MoE does that is routed by task."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tanbr.merge import open as open_moe
from tanbr.moe.layer import TaskRouting, routed
from tanbr.tasks import glue
from tanbr.tasks.card import read_card
from tanbr.train.checkpoints import load, prepare, upcycled
from tanbr.train.early_stop import EarlyStop
from tanbr.train.objectives import Objective, objective_of
from tanbr.train.task_experts import TaskExperts
from train import small


@pytest.fixture(params=["bert", "t5"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    dense = small.DENSE[request.param](tmp_path / "dense")
    return prepare(dense, small.SPACE, tmp_path / "start", max_length=16, seed=0)


def objective(start: Path) -> Objective:
    return objective_of(load(start).config, small.SPACE, small.ENCODER)


def apart(experts: TaskExperts) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in experts.experts.parameters():
            weight += 0.1 * torch.randn(weight.shape)


def test_gradients_are_those_of_the_moe_routed_by_task(start: Path) -> None:
    goal, experts = objective(start), TaskExperts(load(start), experts=3)
    batches = [goal.encode(small.TRAIN[task.name][:4]) for task in small.TASKS]

    def mean(batch: Any) -> Any:
        return lambda view: goal.row_losses(view, batch).mean()

    with ThreadPoolExecutor(2) as workers:
        experts.backward([(v, mean(batch)) for v, batch in enumerate(batches)], workers=workers)
    moe = upcycled(start, experts=3)
    for v, batch in enumerate(batches):
        with routed(moe, TaskRouting(torch.full((4,), v))):
            goal.row_losses(moe, batch).mean().backward()
    for name in experts.names:
        stacked = torch.stack([experts.weights(k)[name].grad for k in range(3)])
        torch.testing.assert_close(stacked, moe.get_parameter(name).grad, rtol=1e-4, atol=1e-6)
    for name, weight in experts.shared().items():
        torch.testing.assert_close(weight.grad, moe.get_parameter(name).grad, rtol=1e-4, atol=1e-6)


def test_what_is_written_answers_as_the_views_do(start: Path, tmp_path: Path) -> None:
    goal, experts = objective(start), TaskExperts(load(start), experts=3)
    apart(experts)
    folder = experts.export(
        start,
        tmp_path / "moe",
        tasks=[task for name in ("RTE", "CoLA", "MRPC") for task in glue.TASKS if task.name == name],
    )
    moe, merged = load(folder), open_moe(folder)
    assert read_card(folder).experts_of(["CoLA", "RTE"]) == (1, 0)
    assert read_card(folder).experts_of(["CoLA", "SST-2"]) == ()
    batch = goal.encode(small.HELD["RTE"])
    with torch.no_grad():
        for k in range(3):
            with routed(moe, TaskRouting(torch.full((len(batch),), k))):
                torch.testing.assert_close(goal.row_losses(moe, batch), goal.row_losses(experts.view(k), batch))
            alone = merged.dense([float(k == other) for other in range(3)])
            torch.testing.assert_close(goal.row_losses(alone, batch), goal.row_losses(experts.view(k), batch))
    assert (tmp_path / "moe" / "tokenizer.json").exists()


def test_a_task_that_gets_worse_keeps_its_best_expert_and_leaves(tmp_path: Path) -> None:
    start = prepare(small.bert(tmp_path / "bert"), small.SPACE, tmp_path / "start", max_length=16, seed=0)
    experts = TaskExperts(load(start), experts=3)
    stop = EarlyStop(experts, patience=2)
    stop.look({0: 0.5, 1: 0.0, 2: 0.9})
    best = [weight.detach().clone() for weight in experts.weights(0).values()]
    apart(experts)
    stop.look({0: 0.4, 1: 0.0, 2: 0.95})
    assert stop.staying() == [0, 1, 2]
    apart(experts)
    stop.look({0: 0.4, 1: 0.0, 2: 0.94})
    assert stop.staying() == [1, 2]  # 1 has not begun to learn: staying at 0 is no reason to go
    for weight, kept in zip(experts.weights(0).values(), best, strict=True):
        assert torch.equal(weight, kept)
    fresh = EarlyStop(experts, patience=2)
    fresh.load_state_dict(stop.state_dict())
    assert fresh.staying() == [1, 2]
