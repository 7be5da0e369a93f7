import pytest
import torch

from elsewhere import elsewhere
from tanbr.lab.paper.setup import ModelSize
from tanbr.lab.paper.timing import METHODS, Models, cell, random_moe, routed, token_merging


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(random_moe(tmp_path_factory.mktemp("random") / "t5", ModelSize(32, 64, 1, 8, 50)))


@torch.inference_mode()
def test_every_method_answers_a_batch(models: Models) -> None:
    for model, routing in METHODS.values():
        routed(models.get(model), routing(4), models.work(model, batch=4, length=8))()


def test_ratios_are_to_the_merged_model(models: Models) -> None:
    found = cell(models, batch=2, length=8, rounds=2, seconds=5)
    assert set(found) == set(METHODS)
    assert found["merged"]["cpu_ratio"] == 1.0
    assert all(one["cpu_ratio"] > 0 < one["seconds"] for one in found.values())


def test_all_but_int8_is_timed_elsewhere(models: Models) -> None:
    with elsewhere() as device:
        there = Models(models.folder, device=str(device))
        timed = {name for name in METHODS if not name.endswith(" int8")}
        assert set(cell(there, batch=2, length=8, rounds=1, seconds=5)) == timed
        assert token_merging(there, length=16, seconds=0.1)["weights_ratio"] > 0
