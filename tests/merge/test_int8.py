"""int8 against float32."""

import torch

from tanbr.merge.int8 import Int8Linear, quantised


def test_no_sum_overflows_at_the_ends_of_the_range() -> None:
    linear = torch.nn.Linear(512, 16, bias=False)
    torch.nn.init.constant_(linear.weight, 1.0)
    x = torch.ones(4, 512)
    torch.testing.assert_close(Int8Linear(linear)(x), torch.full((4, 16), 512.0), rtol=1e-4, atol=0)  # 1 = 63 · 1/63


def test_linear_maps_are_rounded_and_those_left_out_are_shared(moe) -> None:
    model = moe.dense()
    int8_model = quantised(model, only={"classifier"})
    assert int8_model.bert.pooler.dense is model.bert.pooler.dense
    exact, rounded = (m.classifier(torch.ones(1, model.config.hidden_size)) for m in (model, int8_model))
    assert 0 < (exact - rounded).norm() < 0.02 * exact.norm()
    assert not any(type(module) is torch.nn.Linear for module in quantised(model).modules())


def test_a_loud_token_does_not_drown_a_quiet_one() -> None:
    """Every token has a range of its own: a factor on one changes its answer by that factor, and no other's."""
    torch.manual_seed(0)
    int8 = Int8Linear(torch.nn.Linear(64, 32, bias=False))
    x = torch.randn(5, 64)
    loud = x.clone()
    loud[2] *= 2.0**20  # a power of two: nothing is rounded otherwise
    factor = torch.ones(5, 1)
    factor[2] = 2.0**20
    torch.testing.assert_close(int8(loud), int8(x) * factor, rtol=1e-6, atol=0)
    assert torch.equal(int8(torch.zeros(2, 64)), torch.zeros(2, 32))
