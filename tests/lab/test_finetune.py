"""Norms tuned and measured, router by router, on tiny models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from elsewhere import elsewhere
from lab.train import small
from tanbr.errors import CheckpointError, ConfigError
from tanbr.lab import finetune
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.rivals.regmean import measure
from tanbr.lab.train.checkpoints import load
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.finetune import norms
from tanbr.merge import open as open_moe
from tanbr.router.config import RouterConfig
from tanbr.tasks.card import Card, read_card
from tanbr.tasks.metrics import LabelSpace

CONFIG = Tuning(steps=3, batch=6, warmup=1, save_every=2, log_every=1, rate=1e-2, eval_rows=4, max_length=16)
SPACE = LabelSpace(small.TASKS)


def run(checkpoint: Path, router: str, out: Path, *, device: str = "cpu") -> dict[str, Any]:
    return finetune.run(
        checkpoint, router, tasks=small.TASKS, rows=small.TRAIN, unseen=small.HELD, out=out, report=lambda *_: None,
        tuning=CONFIG.model_copy(update={"device": device}), choosing=RouterConfig(), command="test",
    )  # fmt: skip


KNOWN = Card(small.TASKS, tuple(task.name for task in small.TASKS))


@pytest.mark.parametrize("router", ["served", "served+regression", "average+regression"])
def test_an_moe_tuned_for_its_blends_is_written_with_its_card(router: str, tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path, card=KNOWN)
    if "regression" in router:
        opened = open_moe(checkpoint)
        measure(opened, probes_of(opened, small.HELD, space=SPACE, own=range(3)), rows=8)
    result = run(checkpoint, router, tmp_path / "out")
    assert {"tuned even", "tuned own", "untuned even", "untuned own"} == set(result["figures"])
    written = tmp_path / "out" / router / "model"
    assert read_card(written) == KNOWN
    before, after = load(checkpoint).state_dict(), load(written).state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(norms(load(checkpoint)))


@pytest.mark.parametrize("router", ["fisher", "regmean"])
def test_a_merge_without_blends_is_written_dense(router: str, tmp_path: Path) -> None:
    result = run(small.moe(tmp_path, card=KNOWN), router, tmp_path / "out")
    assert result["figures"]["tuned even"] == result["figures"]["tuned own"]
    assert load(tmp_path / "out" / router / "model").config.model_type == "bert"


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_an_moe_whose_experts_belong_to_no_task_has_no_figures_with_tags(kind: str, tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path, kind, experts=2)  # fewer experts than tasks
    about = {"tasks": small.TASKS, "unseen": small.HELD, "tuning": CONFIG}
    assert set(finetune.untuned(checkpoint, **about)) == {"average"}
    run(checkpoint, "average", tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"does not say in its tanbr\.json which of its 2 experts"):
        run(checkpoint, "served", tmp_path / "out")


@pytest.mark.parametrize(
    ("router", "says"),
    [("served+survey", "survey"), ("switch+regression", "may follow"), ("fisher+regression", "may follow")],
)
def test_what_may_follow_a_routers_name(router: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        finetune.check(router)


@pytest.mark.parametrize(
    ("kind", "router"),
    [("bert", "tanbr"), ("bert", "fisher"), ("t5", "rl"), ("t5", "served"), ("t5", "smear")],
)
def test_figures_and_weights_are_the_same_elsewhere(kind: str, router: str, tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path, kind, card=KNOWN)
    with elsewhere() as device:
        here = run(checkpoint, router, tmp_path / "here")
        there = run(checkpoint, router, tmp_path / "there", device=str(device))
    assert there["figures"] == here["figures"]
    one, other = (load_file(tmp_path / place / router / "model/model.safetensors") for place in ("here", "there"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
