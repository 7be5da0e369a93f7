"""Norms are tuned and the router learns; nothing else moves, and an interruption changes nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.train import small
from tanbr.errors import InputError
from tanbr.lab.gates import Reinforce, Smear, Switch
from tanbr.lab.rivals import FixedBlend, RandomBlend
from tanbr.lab.train.checkpoints import load
from tanbr.lab.train.config import Tuning
from tanbr.lab.train.finetune import GatedTuner, MergedTuner, ServedTuner, Tuner, finetune, norms, rewards
from tanbr.lab.train.objectives import Batch, Batches, objective_of
from tanbr.merge import open as open_moe
from tanbr.router import Tanbr
from tanbr.types import Decision

CONFIG = Tuning(steps=6, batch=6, warmup=1, save_every=2, log_every=2, rate=1e-2)
MIXES = np.random.default_rng(0).dirichlet(np.ones(3), CONFIG.steps)


@pytest.fixture(scope="module", params=["bert", "t5"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.moe(tmp_path_factory.mktemp(request.param), request.param)


def tune(checkpoint: Path, tuner: Tuner, state: Path, *, stop_at: int | None = None) -> Tuner:
    objective = objective_of(tuner.model.config, small.SPACE, small.ENCODER)
    batches = Batches(small.TRAIN, objective=objective, seed=0, device=tuner.model.device)

    def report(phase: str, done: int, total: int, loss: float) -> None:
        if done == stop_at:
            raise KeyboardInterrupt

    finetune(tuner, batches, MIXES, objective=objective, config=CONFIG, state=state, report=report)
    return tuner


def merged(checkpoint: Path) -> MergedTuner:
    return MergedTuner(open_moe(checkpoint), Tanbr(3, 3, seed=0), MIXES)


@pytest.mark.parametrize("fixed", [False, True], ids=["a router's blends", "a merge that is no blend"])
def test_only_norms_move_and_the_loss_falls(checkpoint: Path, tmp_path: Path, fixed: bool) -> None:
    moe = open_moe(checkpoint)
    tuner = Tuner(moe.dense([0.5, 0.5, 0.0])) if fixed else MergedTuner(moe, FixedBlend(3, 3), MIXES)
    before = {name: value.clone() for name, value in tuner.model.state_dict().items()}
    tuned = norms(tuner.model)
    objective = objective_of(tuner.model.config, small.SPACE, small.ENCODER)
    everything = objective.encode([row for rows in small.TRAIN.values() for row in rows])
    first = objective.row_losses(tuner.model, everything).mean().item()
    tune(checkpoint, tuner, tmp_path / "state")
    assert objective.row_losses(tuner.model, everything).mean().item() < first
    for name, value in tuner.model.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in tuned), name


def test_an_interrupted_run_resumes_with_the_same_norms_and_router(checkpoint: Path, tmp_path: Path) -> None:
    whole = tune(checkpoint, merged(checkpoint), tmp_path / "whole.state")
    with pytest.raises(KeyboardInterrupt):
        tune(checkpoint, merged(checkpoint), tmp_path / "halved.state", stop_at=5)
    again = tune(checkpoint, merged(checkpoint), tmp_path / "halved.state")
    for one, other in zip(whole.norms, again.norms, strict=True):
        assert torch.equal(one, other)
    assert isinstance(whole, MergedTuner)
    assert isinstance(again, MergedTuner)
    asked = [tuner.router.ask([0.2, 0.5, 0.3]) for tuner in (whole, again)]
    assert asked[0].id == asked[1].id == CONFIG.steps + 1  # the last step chose for one more
    assert np.array_equal(asked[0].blend, asked[1].blend)
    assert (tmp_path / "whole.jsonl").read_text() == (tmp_path / "halved.jsonl").read_text()


@pytest.mark.parametrize("rival", [Switch, Reinforce, Smear])
def test_rivals_train_their_gates_and_the_norms(checkpoint: Path, tmp_path: Path, rival: Any) -> None:
    tuner = GatedTuner(rival(load(checkpoint), seed=0))
    before = {name: value.clone() for name, value in tuner.model.state_dict().items()}
    tune(checkpoint, tuner, tmp_path / "state")
    moved = {name for name, value in tuner.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved - set(norms(tuner.model)) == {name for name in before if name.endswith("gate.weight")}
    assert set(norms(tuner.model)) <= moved


def test_the_reward_is_the_mean_probability_of_the_right_answer() -> None:
    batch = Batch(inputs={}, truth={}, tasks=torch.tensor([0, 0, 2]))
    losses = -torch.log(torch.tensor([0.9, 0.4, 0.25], dtype=torch.float64))
    eps = np.finfo(float).eps  # logs of size 1 and their mean: a few roundings
    assert np.allclose(rewards(losses, batch, tasks=3), [0.6, np.nan, 0.25], rtol=8 * eps, atol=0, equal_nan=True)
    assert rewards(torch.tensor([0.0, 0.0, 1e4]), batch, tasks=3)[2] == 0.0  # and never outside [0, 1]


class Astray(RandomBlend):
    """A third-party router that does not keep to the simplex."""

    def ask(self, task_mix: Any) -> Any:
        return Decision(0, np.asarray(task_mix), np.array([0.9, 0.9, -0.8]))


def test_a_blend_out_of_range_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    tuner = MergedTuner(open_moe(checkpoint), Astray(3, 3), MIXES)
    with pytest.raises(InputError, match="blend must not be negative"):
        tune(checkpoint, tuner, tmp_path / "state")
    assert not (tmp_path / "state").exists()


def served(checkpoint: Path) -> ServedTuner:
    return ServedTuner(open_moe(checkpoint), own=(2, 0, 1))


def test_served_blends_are_drawn_around_the_even_and_the_proportional_one(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, mix = served(checkpoint), np.array([0.5, 0.25, 0.25])
    monkeypatch.setattr("tanbr.lab.train.finetune.NEARNESS", 1e9)
    proportional = tuner.choose(mix)
    assert proportional.tolist() == [0.25, 0.25, 0.5]
    draws = np.array([tuner.draw(mix, torch.Generator().manual_seed(seed)) for seed in range(200)])
    near = [np.abs(draws - centre).max(axis=1) < 1e-3 for centre in (proportional, np.full(3, 1 / 3))]  # 60 deviations
    assert (near[0] ^ near[1]).all()
    assert abs(int(near[0].sum()) - 100) < 6 * np.sqrt(200 / 4)
    monkeypatch.setattr("tanbr.lab.train.finetune.NEARNESS", 1.0)
    wide = np.array([tuner.draw(mix, torch.Generator().manual_seed(seed)) for seed in range(200)])
    assert np.abs(wide - proportional).max(axis=1).mean() > np.abs(draws - proportional).max(axis=1).mean()
    assert (wide > 0).all()


def test_norms_tuned_under_served_blends_resume(checkpoint: Path, tmp_path: Path) -> None:
    before = served(checkpoint)
    start = [weight.detach().clone() for weight in before.norms]
    whole = tune(checkpoint, before, tmp_path / "whole.state")
    with pytest.raises(KeyboardInterrupt):
        tune(checkpoint, served(checkpoint), tmp_path / "halved.state", stop_at=3)
    again = tune(checkpoint, served(checkpoint), tmp_path / "halved.state")
    for one, other, first in zip(whole.norms, again.norms, start, strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, first)
