"""The streaming sum, on its own and into live models."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import tanbr.merge
from moe.tiny import build
from tanbr.errors import CheckpointError, InputError
from tanbr.merge.blend import weighted_sum
from tanbr.moe.checkpoint import Checkpoint


def checkpoint_of(folder, tensors) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "none"}')
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(folder)


@settings(max_examples=40)
@given(
    experts=st.integers(1, 12),
    rows=st.integers(1, 40),
    width=st.integers(1, 3000),
    fused=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    into=st.sampled_from(["whole", "columns", "other type"]),
    seed=st.integers(0, 2**16),
)
def test_sum_equals_numpy(tmp_path_factory, experts, rows, width, fused, dtype, into, seed) -> None:
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(size=(experts, rows, width))).to(dtype)
    weights = rng.uniform(-1, 1, experts) * (rng.random(experts) < 0.7)
    tensors = {"all": values} if fused else {f"e{k}": values[k].contiguous() for k in range(experts)}
    checkpoint = checkpoint_of(tmp_path_factory.mktemp("c"), tensors)
    blocks = [("all", k * rows * width) if fused else (f"e{k}", 0) for k in range(experts)]
    whole = torch.ones(rows, width + 5, dtype=torch.float64 if into == "other type" else dtype)
    out = whole[:, 2 : width + 2] if into == "columns" else whole[:, :width].contiguous()
    weighted_sum(out, checkpoint, blocks, weights.tolist())
    expected = np.einsum("k,krw->rw", weights, values.double().numpy())
    unit = torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * experts
    np.testing.assert_allclose(out.double().numpy(), expected, atol=4 * unit * (1 + np.abs(weights).sum() * 4))
    assert (whole[:, :2] == 1).all() or into != "columns"
    assert (whole[:, width + 2 :] == 1).all() or into != "columns"


def ffn(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for n, p in model.named_parameters() if "intermediate" in n])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_hot_is_that_expert_bit_for_bit(dtype, tmp_path) -> None:
    model = build("t5_moe").to(dtype)
    model.save_pretrained(tmp_path / "moe")
    dense = tanbr.merge.open(tmp_path / "moe").dense([0, 0, 1, 0])
    for name, value in dense.state_dict().items():
        stored = model.state_dict()[name]
        assert torch.equal(value, stored[2] if stored.dim() == value.dim() + 1 else stored)


def test_a_merge_into_half_precision_is_summed_in_float32_and_rounded_once(moe) -> None:
    live = moe.dense().to(torch.bfloat16)
    moe.merge_into(live, np.full(4, 1 / 4))
    torch.testing.assert_close(ffn(live), ffn(moe.dense()).to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("blend", [[0.5, 0.5], [0.5] * 4, [-1, 2, 0, 0], [math.nan] * 4, "many"])
def test_bad_blends_are_refused_and_the_model_stays(moe, blend) -> None:
    live = moe.dense()
    before = ffn(live).clone()
    with pytest.raises(InputError, match="blend must"):
        moe.merge_into(live, blend)
    assert torch.equal(ffn(live), before)


def test_a_damaged_expert_never_reaches_a_live_model(tmp_path) -> None:
    model = build("bert_moe")
    model.save_pretrained(tmp_path / "sound")
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[2, 0, 0] = math.nan
    model.save_pretrained(tmp_path / "moe")
    live = tanbr.merge.open(tmp_path / "sound").dense()
    moe = tanbr.merge.open(tmp_path / "moe")
    before = ffn(live).clone()
    with pytest.raises(CheckpointError, match=r"layer\.1\.output\.dense\.weight.*NaN"):
        moe.merge_into(live, [0.25] * 4)
    assert torch.equal(ffn(live), before)
    moe.merge_into(live, [0.5, 0.5, 0, 0])  # the others are sound
