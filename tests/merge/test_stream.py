"""The one merge loop: every tensor once, written where it is wanted, and nothing written that cannot be finished."""

import math

import pytest
import torch

import tanbr.merge
from elsewhere import elsewhere
from moe.tiny import build
from tanbr.errors import CheckpointError, InputError
from tanbr.merge.blend import finite
from tanbr.moe.families import FAMILIES

BLEND = [0.1, 0.6, 0.0, 0.3]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_tensor_of_the_dense_model_comes_once(model_type, tmp_path) -> None:
    build(model_type).save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    found = list(moe.tensors(BLEND))
    tensors = dict(found)
    assert len(found) == len(tensors)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == moe.plan.shapes
    places = {name: torch.full_like(tensor, math.nan) for name, tensor in tensors.items()}
    for name, tensor in moe.tensors(BLEND, into=places.__getitem__):
        assert tensor is places[name]
        assert torch.equal(tensor, tensors[name])


def test_only_what_changes_with_the_blend(tmp_path) -> None:
    build("deepseek_v3").save_pretrained(tmp_path / "moe")  # its shared expert lies in the same tensor as the blend
    moe = tanbr.merge.open(tmp_path / "moe")
    places = dict(moe.tensors([1, 0, 0, 0]))
    changed = [name for name, _ in moe.tensors(BLEND, into=places.__getitem__, changing=True)]
    assert set(changed) == {piece.target for piece in moe.plan.blended} < set(places)
    for name, tensor in moe.tensors(BLEND):
        assert torch.equal(places[name], tensor)


def test_a_taker_that_lacks_a_place_stays_as_it_was(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    places = {name: torch.zeros_like(tensor) for name, tensor in moe.tensors(BLEND)}
    places.popitem()
    with pytest.raises(KeyError):
        list(moe.tensors(BLEND, into=places.__getitem__))
    assert not any(tensor.any() for tensor in places.values())
    with pytest.raises(InputError, match="blend must"):
        moe.tensors([0.5, 0.5], into=places.__getitem__)


def test_the_taker_computes_gradients_as_it_likes(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    assert all(torch.is_grad_enabled() for _ in moe.tensors(BLEND))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_seen(bad) -> None:
    good = torch.full((3,), torch.finfo(torch.float16).max, dtype=torch.float16)
    assert finite("w", good) is good  # the sum is taken in float32
    with pytest.raises(CheckpointError, match="the merge of w holds NaN"):
        finite("w", torch.tensor([1.0, bad]))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_new_tensors_are_whole_also_where_no_blend_changes_them(model_type, tmp_path) -> None:
    """A shared expert sits beside the blend in the same tensors."""
    build(model_type).save_pretrained(tmp_path)
    moe = tanbr.merge.open(tmp_path)
    every = dict(moe.tensors(BLEND))
    for name, tensor in moe.tensors(BLEND, changing=True):
        assert torch.equal(tensor, every[name]), name


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_dense_model_is_filled_the_same_elsewhere(model_type, tmp_path) -> None:
    build(model_type).save_pretrained(tmp_path / "moe")
    here = tanbr.merge.open(tmp_path / "moe").dense(BLEND).state_dict()
    with elsewhere() as device:
        model = tanbr.merge.open(tmp_path / "moe", device=str(device)).dense(BLEND)
        assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {device}
        assert all(torch.equal(value.cpu(), here[name]) for name, value in model.state_dict().items())
