"""What the methods on differences have in common: the base."""

import pytest
import torch
from safetensors.torch import save_file

import tanbr
from merge.methods.reference import compare
from tanbr.errors import CheckpointError


@pytest.mark.parametrize("method", ["task-arithmetic:scale=2", "ties:density=1:scale=2", "dare:density=1:scale=2"])
def test_an_ancestor_is_the_base(related, tmp_path, method) -> None:
    dense = tanbr.open(related).dense([1.0, 0.0, 0.0, 0.0])
    dense.save_pretrained(tmp_path / "ancestor")
    moe = tanbr.open(related, method=f"{method}:base={tmp_path / 'ancestor'}")
    base = dense.state_dict()
    compare(moe, [0.0, 1.0, 0.0, 0.0], lambda c: c.base + 2 * (c.experts[1] - c.base), roundings=32, base=base)
    assert [file.path.parent.name for file in moe.method.files] == ["ancestor"]


def test_a_stranger_is_no_ancestor(related, tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    save_file({"something": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"is no ancestor of .*got none"):
        tanbr.open(related, method=f"ties:base={tmp_path}")
