import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lab.train import small
from tanbr.errors import ConfigError
from tanbr.lab.corpus import Dataset, Rows
from tanbr.lab.studies import learning, monitor, regret
from tanbr.lab.studies.broken_expert import broken
from tanbr.lab.studies.regret import Scenario, World, played
from tanbr.lab.studies.reward_maps import MAPS, BestBlends
from tanbr.lab.train.checkpoints import load
from tanbr.lab.train.upcycle import ffn_names
from tanbr.tasks.card import Card, read_card


@pytest.mark.parametrize("family", MAPS)
def test_rewards_lie_between_0_and_1_and_no_blend_beats_the_best(family: str) -> None:
    rewards = MAPS[family](5, 3, np.random.default_rng(0))
    blends, mix = np.random.default_rng(1).dirichlet(np.ones(5), 200), np.array([0.5, 0.3, 0.2])
    found = rewards(blends)
    assert found.shape == (200, 3)
    assert (found >= 0).all()
    assert (found <= 1).all()
    best = BestBlends(rewards, experts=5, max_active=5, seed=0).value(mix)
    assert (found @ mix).max() <= best + 1e-3


def test_the_regret_study_tells_routers_apart_and_keeps_its_runs(tmp_path: Path) -> None:
    names = "tanbr,tanbr:beta=1;change=0,random"
    regret.main(["--quick", "--mixes", "fixed", "--routers", names, "--out", str(tmp_path / "r.json")])
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    mean = {name: np.mean([run["mean"] for run in runs if run["router"] == name]) for name in names.split(",")}
    assert mean["tanbr"] < mean["random"]
    assert (tmp_path / "r.md").read_text().count("| random |") == 1
    with pytest.raises(ConfigError, match="unknown router 'nucb:beta=1'"):
        played("nucb:beta=1", World(Scenario("bumps", "fixed", 0, slots=3)))


def test_parts_of_the_router_can_be_switched_off_on_maps_and_on_requests(tmp_path: Path) -> None:
    world = World(Scenario("bumps", "fixed", 0, slots=3))
    for part in regret.PARTS:
        played(f"tanbr:{part}", world)  # the router still has it
    names = f"tanbr,tanbr:{regret.PARTS[3]}"
    asked = ["--suite", "requests", "--slots", "6", "--routers", names]
    regret.main([*asked, "--out", str(tmp_path / "r.json")])
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    earned = {(run["family"], run["router"]): run["mean"] for run in runs}
    assert len(earned) == 4
    assert len(set(earned.values())) > 1
    with pytest.raises(SystemExit):
        regret.main([*asked, "--conditions", "noise 0.15"])


def test_what_learning_earned_is_told_by_seed(tmp_path: Path) -> None:
    folder = tmp_path / "known"
    (folder / "runs").mkdir(parents=True)
    about = {"command": "tanbr simulate --slots 40", "facts": {"model_sha256": "abc"}}
    (folder / "simulate.json").write_text(json.dumps(about))
    for name, late in (("seed0-tanbr", 0.9), ("seed1-tanbr", 0.8), ("seed0-average", 0.5), ("seed1-average", 0.4)):
        reward = [[0.5, None]] * 30 + [[late, 0.0]] * 10  # the second task comes late, and one time in ten
        slots = {"reward": reward, "counts": [[9, 0]] * 30 + [[9, 1]] * 10}
        (folder / "runs" / f"{name}.json").write_text(json.dumps({"result": {"slots": slots}}))
    found = learning.figures(folder)
    assert found["command"] == about["command"]
    assert found["rewards"]["tanbr"]["seed0"] == {"all": 0.5775, "from slot 30": 0.81, "first 20": 0.5}
    assert found["rewards"]["average"]["seed1"]["from slot 30"] == 0.36
    lines = [f"even={folder}:average", f"tanbr={folder}:tanbr"]
    learning.draw(lines, lines, tmp_path / "learning.png")
    assert (tmp_path / "learning.png").stat().st_size > 1_000


def test_the_monitor_study_measures_what_it_is_asked_for(tmp_path: Path) -> None:
    monitor.main(["--quick", "--parts", "recognition", "--out", str(tmp_path / "m.json")])
    found = json.loads((tmp_path / "m.json").read_text())
    assert found["recognition"]["tiny"]["accuracy, tasks alike"] > 0.95
    assert "mix" not in found


class Few(Dataset):
    def divided(self) -> tuple[Any, Any]:
        return small.TRAIN, small.HELD

    def dev(self, *, limit: int | None = None) -> Rows:
        return small.HELD


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_broken_expert_differs_from_the_checkpoints_and_nothing_else_does(kind: str, tmp_path: Path) -> None:
    checkpoint = small.moe(tmp_path, kind, card=Card(small.TASKS, ("RTE", "SST-2", "STS-B")))
    broken(checkpoint, Few(), tmp_path / "broken", task="SST-2", steps=2)
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "broken"))
    assert before.keys() == after.keys()
    ffns = set(ffn_names(load(checkpoint)))
    for name, value in before.items():
        same = [torch.equal(*pair) for pair in zip(value, after[name], strict=True)]
        assert same == ([True, False, True] if name in ffns else [True] * len(value)), name
    assert read_card(tmp_path / "broken") == read_card(checkpoint)
