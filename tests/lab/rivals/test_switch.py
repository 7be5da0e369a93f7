import pytest
import torch

from lab.rivals.toy import Toy
from tanbr.lab.rivals.switch import Switch, load_balance


def test_load_balance_by_hand() -> None:
    # two of three tokens go to expert 0: f = (2/3, 1/3); P is the mean of (0.8, 0.2), (0.6, 0.4), (0.1, 0.9)
    probabilities = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    expected = 2 * (2 / 3 * 1.5 / 3 + 1 / 3 * 1.5 / 3)
    assert float(load_balance(probabilities.log())) == pytest.approx(expected)


def test_perfect_balance_is_one_and_collapse_is_the_number_of_experts() -> None:
    assert float(load_balance(torch.eye(4) * 3)) == pytest.approx(1.0)
    assert float(load_balance(torch.tensor([[100.0, 0, 0, 0]] * 5))) == pytest.approx(4.0)


def test_the_loss_is_the_tasks_and_the_balance_of_real_tokens() -> None:
    model = Toy()
    rival = Switch(model, balance=0.5)
    rival.trained()[0].data = torch.tensor([[2.0, 0, 0], [0, 2.0, 0]])
    x = torch.tensor([[[1.0, 0, 0], [0, 1.0, 0], [0, 5.0, 0]]])  # the last token is padding
    loss = rival.loss(
        {"attention_mask": torch.tensor([[1, 1, 0]])},
        lambda: model(x)[:, :2].square().sum(dim=(1, 2)),
        torch.Generator(),
    )
    p = float(torch.tensor([2.0, 0.0]).softmax(0)[0])
    assert float(loss.detach()) == pytest.approx((2 * p) ** 2 + p**2 + 0.5 * 1.0)  # experts scaled by p; even load
