from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from serve.text_model import write
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.backends.choose import instructions
from tanbr.serve.engine import Engine


@pytest.mark.skipif("bf16" not in instructions("cpu"), reason="this processor has no bf16")
def test_a_merge_in_bf16_goes_straight_into_half_the_memory(moe: Moe) -> None:
    whole, half = Engine(moe).live.backend, Engine(moe, precision="bf16").live.backend
    assert half.size.own_bytes == whole.size.own_bytes / 2
    half.merge(moe, np.eye(8)[3])
    places = half.outputs  # type: ignore[attr-defined]
    for name, tensor in moe.tensors(np.eye(8)[3], changing=True):
        assert torch.equal(places[name], tensor.to(torch.bfloat16))


def test_a_family_whose_ffns_are_no_linear_maps_is_refused_in_int8(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"changes no linear map .* serve it in fp32"):
        Engine(open_moe(write("olmoe", tmp_path / "model")), precision="int8")


def test_a_float_twin_shares_everything_but_the_ffns(moe: Moe) -> None:
    one = Engine(moe).live.backend
    models = [backend.model for backend in (one, one.twin(moe))]  # type: ignore[attr-defined]
    first, second = (dict(model.named_parameters()) for model in models)
    own = {name for name in first if first[name].data_ptr() != second[name].data_ptr()}
    assert own == {piece.target for piece in moe.plan.blended}
    assert one.size.own_bytes == sum(4 * first[name].numel() for name in own)
    buffers = sum(tensor.numel() for tensor in models[0].buffers())
    assert one.size.parameters == sum(tensor.numel() for tensor in first.values()) + buffers
    assert one.agreement is None
    assert isinstance(models[0].classifier, nn.Linear)
