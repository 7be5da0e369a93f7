"""A task that has learnt what it can keeps its best expert."""

from pathlib import Path

import torch

from lab.train import small
from tanbr.lab.train.checkpoints import load, prepare
from tanbr.lab.train.early_stop import EarlyStop
from tanbr.lab.train.expert_views import ExpertViews


def apart(experts: ExpertViews) -> None:
    with torch.no_grad():
        for weight in experts.experts.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))


def test_a_task_that_gets_worse_keeps_its_best_expert_and_leaves(tmp_path: Path) -> None:
    start = prepare(small.bert(tmp_path / "bert"), small.SPACE, tmp_path / "start", max_length=16, seed=0)
    experts = ExpertViews(load(start), experts=3)
    stop = EarlyStop(experts, patience=2)
    again = {0: 0.45}  # what the best expert has when it comes back
    stop.look({0: 0.5, 1: 0.0, 2: 0.9}, again.__getitem__)
    best = [weight.detach().clone() for weight in experts.weights(0).values()]
    apart(experts)
    stop.look({0: 0.4, 1: 0.0, 2: 0.95}, again.__getitem__)
    assert stop.staying() == [0, 1, 2]
    apart(experts)
    stop.look({0: 0.4, 1: 0.0, 2: 0.94}, again.__getitem__)
    assert stop.staying() == [1, 2]  # 1 has not begun to learn: staying at 0 is no reason to go
    for weight, kept in zip(experts.weights(0).values(), best, strict=True):
        assert torch.equal(weight, kept)
    fresh = EarlyStop(experts, patience=2)
    fresh.load_state_dict(stop.state_dict())
    assert fresh.staying() == [1, 2]


def test_a_best_expert_that_no_longer_fits_does_not_come_back(tmp_path: Path) -> None:
    """What is shared has learnt on: the expert that was best with it before may be worse than today's."""
    start = prepare(small.bert(tmp_path / "bert"), small.SPACE, tmp_path / "start", max_length=16, seed=0)
    experts = ExpertViews(load(start), experts=3)
    stop = EarlyStop(experts, patience=1)
    stop.look({0: 0.5}, {}.__getitem__)
    apart(experts)
    today = [weight.detach().clone() for weight in experts.weights(0).values()]
    stop.look({0: 0.4}, {0: 0.3}.__getitem__)
    assert stop.staying() == [1, 2]
    for weight, kept in zip(experts.weights(0).values(), today, strict=True):
        assert torch.equal(weight, kept)
