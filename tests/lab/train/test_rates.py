"""Who learns at which rate, and who does not."""

from pathlib import Path
from typing import Any

import pytest

from lab.train import small
from tanbr.lab.train.checkpoints import load, prepare
from tanbr.lab.train.expert_views import ExpertViews
from tanbr.lab.train.rates import groups


def sorted_names(kind: str, folder: Path, **changes: Any) -> list[set[str]]:
    """Name the parameters of each group: what is shared, the head, the experts."""
    start = prepare(small.DENSE[kind](folder / "dense"), small.SPACE, folder / "start", max_length=16, seed=0)
    experts = ExpertViews(load(start), experts=2)
    names = {id(weight): name for name, weight in (*experts.shared().items(), *experts.named_weights())}
    found = groups(experts.shared(), experts.named_weights(), small.CONFIG.model_copy(update=changes))
    assert [group["lr"] for group in found] == [1e-3, 1e-2, 1e-2]
    learning = {id(weight) for group in found for weight in group["params"]}
    assert learning == {id(weight) for weight in experts.parameters() if weight.requires_grad}
    return [{names[id(weight)] for weight in group["params"]} for group in found]


def test_head_body_and_experts_have_a_rate_each(tmp_path: Path) -> None:
    body, head, experts = sorted_names("bert", tmp_path, train_embeddings=True)
    assert {name.split(".")[0] for name in head} == {"bert", "classifier"}
    assert {name for name in body if "embeddings" in name}
    assert len(experts) == 2 * 4  # of either layer: two weights, two biases


def test_embeddings_may_stay(tmp_path: Path) -> None:
    body, _, _ = sorted_names("bert", tmp_path, train_embeddings=False)
    assert body
    assert not {name for name in body if "embeddings" in name}


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_the_lowest_layers_of_an_encoder_may_stay(kind: str, tmp_path: Path) -> None:
    body, _, experts = sorted_names(kind, tmp_path, train_embeddings=True, frozen_layers=1)
    frozen = "encoder.layer.0." if kind == "bert" else "encoder.block.0."
    assert not {name for name in body | experts if frozen in f".{name}" and "decoder" not in name}
    assert not {name for name in body if "embeddings" in name or name.startswith("shared")}
    assert {name for name in experts if ("encoder.layer.1." if kind == "bert" else "decoder.block.0.") in name}
