import pytest

from tanbr.merge import open as open_moe
from tanbr.moe import embedded


@pytest.mark.parametrize(("kind", "family"), [("bert", "bert_moe"), ("t5", "t5_moe")])
def test_the_package_carries_models(kind: embedded.EmbeddedModel, family: str) -> None:
    held = {file.name: file.stat().st_size for file in embedded.path(kind).iterdir()}
    assert {"config.json", "model.safetensors", "tanbr.json", "survey.json"} <= set(held)
    assert sum(held.values()) < 5e6  # everybody who installs the package carries it
    moe = open_moe(embedded.path(kind))
    assert (moe.family.model_type, moe.num_experts) == (family, 8)
