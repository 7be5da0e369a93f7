from pathlib import Path

import pytest
import torch

from elsewhere import elsewhere
from tanbr.lab.paper.setup import ModelSize
from tanbr.lab.paper.timing import METHODS, Models, cell, random_moe, routed, token_merging

SIZES = {"t5": ModelSize(32, 64, 1, 1, 8, 50), "bert": ModelSize(32, 64, 1, 0, 8, 50)}


@pytest.fixture(scope="module", params=SIZES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder: Path = tmp_path_factory.mktemp("random") / request.param
    return Models(random_moe(folder, SIZES[request.param]))


@torch.inference_mode()
def test_every_method_answers_a_batch(models: Models) -> None:
    for name, (model, routing) in METHODS.items():
        routed(models.get(model), routing(4), models.work(model, "forward", batch=4, length=8))()
        assert models.get(model) is models.get(model), name


def test_ratios_are_to_the_merged_model(models: Models) -> None:
    found = cell(models, "forward", batch=2, length=8, rounds=2, seconds=5, skip={"token-merging"})
    assert set(found) == set(METHODS) - {"token-merging"}
    assert found["merged"]["ratio"] == found["merged"]["cpu_ratio"] == 1.0
    for one in found.values():
        assert one["ratio_low"] <= one["ratio"] <= one["ratio_high"]
        assert one["rounds"] >= 1


def test_merging_for_every_token_is_timed_on_a_few_tokens(models: Models) -> None:
    found = token_merging(models, length=16, seconds=0.1)
    assert found["tokens"] == 8
    assert found["weights_ratio"] > 0


def test_all_but_int8_is_timed_elsewhere(models: Models) -> None:
    with elsewhere() as device:
        there = Models(models.folder, device=str(device))
        skip = {"token-merging"} | {name for name in METHODS if name.endswith(" int8")}
        for mode in ("forward", "decode") if models.writes else ("forward",):
            assert set(cell(there, mode, batch=2, length=8, rounds=1, seconds=5, skip=skip)) == set(METHODS) - skip
        assert token_merging(there, length=16, seconds=0.1)["weights_ratio"] > 0
