"""LoRA adapters as experts: trained over a base that stays as it is, saved as PEFT saves them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from lab.train import small
from tanbr.errors import ConfigError
from tanbr.lab import glue_moe
from tanbr.lab.train.adapter_views import LIST, AdapterViews
from tanbr.lab.train.assemble import card_of
from tanbr.lab.train.checkpoints import load, prepare
from tanbr.merge import open as open_moe

CONFIG = small.CONFIG.model_copy(update={"adapters": 2, "adapter_rate": 0.05})


def factors(folder: Path) -> dict[str, Any]:
    return {task.name: load_file(folder / task.name / "adapter_model.safetensors") for task in small.TASKS}


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_an_interrupted_run_ends_in_the_same_adapters_and_the_base_stays(kind: str, tmp_path: Path) -> None:
    dense = small.DENSE[kind](tmp_path / "dense")
    whole = small.train(dense, tmp_path / "whole", config=CONFIG, workers=2).parent
    ancestor = (tmp_path / "whole/ancestor/model.safetensors").read_bytes()
    with pytest.raises(small.Stopped):
        small.train(dense, tmp_path / "halved", config=CONFIG, stop_at=("experts", 5))
    halved = small.train(dense, tmp_path / "halved", config=CONFIG).parent
    for task, own in factors(whole).items():
        again = factors(halved)[task]
        assert own.keys() == again.keys()
        assert all(torch.equal(value, again[name]) for name, value in own.items()), task
        assert any(value.any() for name, value in own.items() if "lora_B" in name), task  # it has learned
    assert (tmp_path / "whole/ancestor/model.safetensors").read_bytes() == ancestor


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


def test_adapters_are_equal_at_first_and_what_they_compute_is_the_base(tmp_path: Path) -> None:
    start = load(prepare(small.bert(tmp_path / "dense"), small.SPACE, tmp_path / "start", max_length=16, seed=0))
    inputs = small.ENCODER(["w1 w2", "w3"])
    with torch.no_grad():
        expected = start.double()(**inputs).logits
    views = AdapterViews(start, experts=2, rank=3, seed=5)
    for name in views.names:
        assert torch.equal(views.weights(0)[name], views.weights(1)[name])
    assert not views.shared()
    with torch.no_grad():
        torch.testing.assert_close(views.view(1)(**inputs).logits, expected, rtol=1e-9, atol=1e-12)


def test_adapters_are_scored_like_other_experts(tmp_path: Path) -> None:
    _, figures = glue_moe.train(
        CONFIG, dense=small.bert(tmp_path / "dense"), rows=small.TRAIN, held=small.HELD, unseen=small.HELD,
        out=tmp_path, report=lambda *_: None,
    )  # fmt: skip
    assert set(figures) == {"tags", "average"}


def test_blends_of_adapters_are_not_trained(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"mergeable": 0.5})
    with pytest.raises(ConfigError, match="leave out mergeable, or adapters"):
        small.train(small.bert(tmp_path / "dense"), tmp_path, config=config)


def test_adapters_are_the_same_elsewhere(tmp_path: Path) -> None:
    dense = small.bert(tmp_path / "dense")
    small.elsewhere_too(tmp_path, lambda config, out: small.train(dense, out, config=config).parent, CONFIG)
