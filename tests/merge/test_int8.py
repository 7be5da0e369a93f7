"""int8 against float32, before anybody is offered it."""

from types import SimpleNamespace

import pytest
import torch

from tanbr.errors import InputError
from tanbr.merge.int8 import Int8Linear, measure, offered, quantised, weight_bits


def batches(n=4):
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(3, 64, (8, 9), generator=generator)} for _ in range(n)]


def test_no_sum_overflows_at_the_ends_of_the_range() -> None:
    linear = torch.nn.Linear(512, 16, bias=False)
    torch.nn.init.constant_(linear.weight, 1.0)
    x = torch.ones(4, 512)
    assert weight_bits() in (7, 8)
    torch.testing.assert_close(Int8Linear(linear)(x), torch.full((4, 16), 512.0), rtol=1e-4, atol=0)  # 1 = 63 · 1/63


def test_the_loss_is_measured_and_reported(moe) -> None:
    model = moe.dense()
    int8_model, loss = offered(model, batches(), least_agreement=0.5)
    assert 0 < loss.relative_error < 0.3
    assert loss.positions == 32
    assert measure(model, model, batches()) == type(loss)(0.0, 1.0, 32)
    assert not any(type(module) is torch.nn.Linear for module in int8_model.modules())
    assert any(type(module) is torch.nn.Linear for module in model.modules())  # the original stays


def test_int8_is_refused_where_it_answers_otherwise() -> None:
    """Weights 1 and 0.4/127 share a row's scale: the small one is rounded to 0, and with it the whole difference."""
    linear = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.4 / 127]]))
    model = Head(linear)
    batch = {"x": torch.tensor([[1.0, 1.0]])}
    assert model(**batch).logits.argmax() == 1
    assert quantised(model)(**batch).logits.argmax() == 0  # equal rows: the first of them
    with pytest.raises(InputError, match=r"the same answer at 0.0% of 1 positions, below the 100.0% asked for"):
        offered(model, [batch], least_agreement=1.0)
    with pytest.raises(InputError, match="at least one batch"):
        offered(model, [])
    kept, loss = offered(model, [batch], least_agreement=1.0, choices=(None, set()))  # then nothing is in int8
    assert loss.agreement == 1
    assert kept.head is linear


class Head(torch.nn.Module):
    """A model that is one linear map."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(x))


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
