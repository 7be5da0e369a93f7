"""Norms are tuned while a router or gates learn; nothing else moves, and an interruption changes nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.train import small
from tanbr.errors import ConfigError
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.rivals.regmean import measure
from tanbr.lab.train import finetune
from tanbr.lab.train.checkpoints import load
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.finetune import rewards
from tanbr.lab.train.objectives import Batch, objective_of
from tanbr.lab.train.tuner import norms
from tanbr.merge import open as open_moe
from tanbr.router.config import RouterConfig
from tanbr.tasks.card import Card, read_card

CONFIG = Tuning(steps=4, batch=6, warmup=1, save_every=2, log_every=1, rate=1e-2, eval_rows=4, max_length=16)
KNOWN = Card(small.TASKS, tuple(task.name for task in small.TASKS))
WEIGHTS = "model/model.safetensors"


def run(
    checkpoint: Path, router: str, out: Path, *, device: str = "cpu", stop_at: int | None = None, also: Any = None
) -> dict[str, Any]:
    def report(phase: str, done: int, *_: Any) -> None:
        if phase.startswith("finetune") and done == stop_at:
            raise KeyboardInterrupt

    return finetune.run(
        checkpoint, router, tasks=small.TASKS, rows=small.TRAIN, unseen=small.HELD, out=out, report=report,
        tuning=CONFIG.model_copy(update={"device": device}), choosing=RouterConfig(), command="test", also=also,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "router"),
    [
        ("t5", "tanbr"), ("bert", "average+regression"), ("t5", "switch"), ("bert", "rl"), ("bert", "smear"),
    ],
)  # fmt: skip
def test_only_norms_and_gates_move_and_the_moe_is_written(kind: str, router: str, tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path, kind, card=KNOWN)
    if "regression" in router:
        opened = open_moe(checkpoint)
        measure(opened, probes_of(opened, small.HELD, space=small.SPACE, own=range(3)), rows=8)
    result = run(checkpoint, router, tmp_path / "out")
    assert {"tuned even", "tuned own", "untuned even", "untuned own"} == set(result["figures"])
    written = tmp_path / "out" / router / "model"
    before, after = load(checkpoint).state_dict(), load(written).state_dict()
    moved = {name for name in after if name not in before or not torch.equal(before[name], after[name])}
    assert moved == set(norms(load(checkpoint))) | {name for name in after if name.endswith("gate.weight")}
    if router in ("switch", "rl", "smear"):
        assert any(name.endswith("gate.weight") for name in after)
    else:
        assert read_card(written) == KNOWN


def test_the_loss_falls(tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path)

    def loss(model: Any) -> float:
        objective = objective_of(model.config, small.SPACE, small.ENCODER)
        everything = objective.encode([row for rows in small.TRAIN.values() for row in rows])
        with torch.no_grad():
            return float(objective.row_losses(model, everything).mean())

    tuned = run(checkpoint, "average", tmp_path / "out", also=lambda tuner, _: loss(tuner.model))
    assert tuned["also"] < loss(open_moe(checkpoint).dense())


@pytest.mark.parametrize(("kind", "router"), [("bert", "tanbr"), ("t5", "rl")])
def test_an_interrupted_run_ends_in_the_same_norms_and_router(kind: str, router: str, tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path, kind, card=KNOWN)
    run(checkpoint, router, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, router, tmp_path / "halved", stop_at=3)
    run(checkpoint, router, tmp_path / "halved")
    whole, halved = tmp_path / "whole" / router, tmp_path / "halved" / router
    kept = [WEIGHTS, "tuned.jsonl", *(["router.state"] if router == "tanbr" else [])]
    for name in kept:
        assert (whole / name).read_bytes() == (halved / name).read_bytes(), name


def test_the_reward_is_the_mean_probability_of_the_right_answer() -> None:
    batch = Batch(inputs={}, truth={}, tasks=torch.tensor([0, 0, 2]))
    losses = -torch.log(torch.tensor([0.9, 0.4, 0.25], dtype=torch.float64))
    assert np.allclose(rewards(losses, batch, tasks=3), [0.6, np.nan, 0.25], rtol=1e-12, atol=0, equal_nan=True)
    assert rewards(torch.tensor([0.0, 0.0, 1e4]), batch, tasks=3)[2] == 0.0  # and never outside [0, 1]


def test_an_moe_whose_experts_belong_to_no_task_has_no_figures_with_tags(tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path, experts=2)  # fewer experts than tasks
    about = {"tasks": small.TASKS, "unseen": small.HELD, "tuning": CONFIG}
    assert set(finetune.untuned(checkpoint, **about)) == {"average"}


@pytest.mark.parametrize(("router", "says"), [("average+survey", "survey"), ("switch+regression", "may follow")])
def test_what_may_follow_a_routers_name(router: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        finetune.check(router)
