"""int8 against float32, before anybody is offered it."""

import numpy as np
import pytest
import torch

import tanbr.merge
from moe.tiny import build
from tanbr.errors import InputError
from tanbr.merge.int8 import Int8Linear, measure, offered, quantised, refresh
from tanbr.moe.layer import TaskRouting, route


@pytest.fixture
def moe(tmp_path):
    build("bert_moe").save_pretrained(tmp_path / "moe")
    return tanbr.merge.open(tmp_path / "moe")


def batches(n=4):
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(3, 64, (8, 9), generator=generator)} for _ in range(n)]


def test_a_linear_map_in_int8_is_near() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(300, 200)
    with torch.no_grad():
        linear.weight[7] *= 100  # a loud channel must not drown the others: scales are per channel
        linear.weight[9] = 0
    x = torch.randn(50, 300)
    exact, rounded = linear(x).detach(), Int8Linear(linear)(x)
    error = (exact - rounded).norm(dim=0) / exact.norm(dim=0)
    assert float(error.max()) < 0.03


def test_no_sum_overflows_at_the_ends_of_the_range() -> None:
    linear = torch.nn.Linear(512, 16, bias=False)
    torch.nn.init.constant_(linear.weight, 1.0)
    x = torch.ones(4, 512)
    torch.testing.assert_close(Int8Linear(linear)(x), linear(x).detach(), rtol=0.02, atol=0)


def test_the_loss_is_measured_and_reported(moe) -> None:
    model = moe.dense()
    int8_model, loss = offered(model, batches(), least_agreement=0.5)
    assert 0 < loss.relative_error < 0.3
    assert loss.positions == 32
    assert measure(model, model, batches()) == type(loss)(0.0, 1.0, 32)
    assert not any(type(module) is torch.nn.Linear for module in int8_model.modules())
    assert any(type(module) is torch.nn.Linear for module in model.modules())  # the original stays


def test_int8_is_refused_where_it_answers_otherwise(moe) -> None:
    model = moe.dense()
    with torch.no_grad():
        model.classifier.bias.zero_()
        model.classifier.weight[1] = model.classifier.weight[0] * (1 + 1e-5)  # rounding decides between the two
    with pytest.raises(InputError, match=r"below the 100.0% asked for"):
        offered(model, batches(), least_agreement=1.0)
    with pytest.raises(InputError, match="at least one batch"):
        offered(model, [])


def test_refresh_follows_a_merge(moe) -> None:
    model = moe.dense()
    int8_model = quantised(model)
    blend = np.array([0.7, 0.3, 0.0, 0.0])
    moe.merge_into(model, blend)
    stale = measure(model, int8_model, batches()).relative_error
    refresh(int8_model, model)
    fresh = measure(model, int8_model, batches()).relative_error
    assert fresh < stale
    expected = measure(model, quantised(moe.dense(blend)), batches()).relative_error
    assert fresh == pytest.approx(expected)
    with pytest.raises(InputError, match="no linear map"):
        refresh(int8_model, int8_model)


@pytest.mark.parametrize("model_type", ["bert_moe", "t5_moe"])
def test_unmerged_models_in_int8(model_type) -> None:
    model = build(model_type)
    int8_model = quantised(model)
    for live in (model, int8_model):
        route(live, TaskRouting(torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])))
    more = {"decoder_input_ids": torch.zeros(8, 3, dtype=torch.int64)} if model_type == "t5_moe" else {}
    assert measure(model, int8_model, [batch | more for batch in batches(1)]).relative_error < 0.3
