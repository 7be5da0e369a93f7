"""REINFORCE against the gradient of the expected loss, with every choice of experts enumerated."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

from lab.rivals.toy import Toy
from tanbr.lab.rivals import rl
from tanbr.lab.rivals.rl import Reinforce, policy_loss


def test_policy_loss_by_hand() -> None:
    logits = torch.zeros(2, 2, requires_grad=True)  # π = (½, ½) for both tokens
    baseline = torch.tensor([1.0, 1.0], requires_grad=True)
    loss = policy_loss(logits, torch.tensor([0, 1]), torch.tensor([3.0, -1.0]), baseline)
    loss.backward()
    # advantages 2 and −2; −log π = log 2 for both, so that the policy's terms cancel; squares 4 and 4
    assert float(loss.detach()) == pytest.approx(4.0)
    # ∂(−log π(a)) = π − e_a = (−½, ½) and (½, −½), each times its advantage, over 2 tokens
    assert logits.grad.tolist() == [[-0.5, 0.5], [-0.5, 0.5]]
    assert baseline.grad.tolist() == [-2.0, 2.0]  # −2 (r − b) / 2


@pytest.mark.parametrize("baseline", [0.0, -3.0])
def test_the_gradient_is_that_of_the_expected_loss(monkeypatch, baseline) -> None:
    torch.manual_seed(0)
    model = Toy()
    rival = Reinforce(model, balance=0.0)
    rival.baselines[0].bias.data.fill_(baseline)
    gate = rival.trained()[0]
    gate.data = torch.randn(2, 3)
    x, target = torch.randn(1, 2, 3), torch.randn(1, 2, 3)

    def row_losses():
        y = model(x)
        seen.append((y - target).square().sum(dim=(1, 2)) * (1 + y.sum().square()))  # tokens' choices interact
        return seen[-1]

    seen, estimate, expected_loss = [], torch.zeros_like(gate), torch.zeros(())
    for experts in product(range(2), repeat=2):
        forced = 1e6 * F.one_hot(torch.tensor(experts), 2)
        monkeypatch.setattr(rl, "gumbel", lambda logits, rng, forced=forced: forced)
        gate.grad = None
        rival.loss({"attention_mask": torch.ones(1, 2)}, row_losses, torch.Generator()).backward()
        chance = F.linear(x[0], gate).softmax(dim=-1)[range(2), experts].prod()
        estimate += chance.detach() * gate.grad
        expected_loss = expected_loss + chance * seen[-1].sum()
    gate.grad = None
    expected_loss.backward()
    torch.testing.assert_close(estimate * 2, gate.grad)  # the policy's loss is a mean over the row's two tokens


def test_it_serves_the_likeliest_expert_as_it_is() -> None:
    model = Toy()
    rival = Reinforce(model)
    rival.trained()[0].data = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]])
    x = torch.tensor([[[0.1, 2.0, 0.0], [-0.1, 2.0, 0.0]]])
    with rival.serving():
        torch.testing.assert_close(model(x), torch.tensor([[[0.2, 4.0, 0.0], [0.1, -2.0, 0.0]]]))
