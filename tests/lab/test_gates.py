"""Rivals with trained gates: on the smallest model, by hand; and on whole ones."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moe.tiny import build
from tanbr.lab import gates
from tanbr.lab.gates import Reinforce, Smear, Switch, gumbel, load_balance
from tanbr.moe.layer import ExpertFfn, ExpertLinear, MoeSite

D = 3
RIVALS = {"switch": Switch, "rl": Reinforce, "smear": Smear}
each = pytest.mark.parametrize("make", RIVALS.values(), ids=RIVALS)


class Site(MoeSite):
    """One site whose two experts double a token, and turn it around."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = (ExpertLinear(2, D, D, bias=False, std=1.0) for _ in range(2))
        self.inner.weight.data = torch.eye(D).repeat(2, 1, 1)
        self.outer.weight.data = torch.stack([2 * torch.eye(D), -torch.eye(D)])
        self.gate = None

    def forward(self, x: Tensor) -> Tensor:
        return ExpertFfn([self.inner], self.outer, nn.Identity(), nn.Identity())(x, self)


class Toy(nn.Module):
    """Takes tokens (n, length, D) as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(router=False)
        self.site = Site().requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.site(x)
        return y


@each
@pytest.mark.parametrize("family", ["bert_moe", "t5_moe"])
def test_a_step_teaches_the_gates_and_padding_changes_no_answer(make, family) -> None:
    model = build(family, **({"decoder_start_token_id": 0} if family == "t5_moe" else {}))
    rival = make(model)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]]) * mask, "attention_mask": mask}
    if family == "t5_moe":
        inputs["labels"] = torch.tensor([[4, 5], [6, -100]])

    def row_losses() -> Tensor:
        logits = model(**inputs).logits
        if family == "t5_moe":
            return F.cross_entropy(logits.transpose(1, 2), inputs["labels"], reduction="none").sum(dim=1)
        return F.cross_entropy(logits, torch.arange(2), reduction="none")

    first, second = (rival.loss(inputs, row_losses, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    first.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in rival.parameters())
    longer = {name: F.pad(value, (0, 3)) if name != "labels" else value for name, value in inputs.items()}
    with torch.inference_mode():
        torch.testing.assert_close(model(**longer).logits, model(**inputs).logits, rtol=1e-4, atol=1e-4)


def test_switch_adds_the_balance_of_real_tokens_to_the_loss() -> None:
    model = Toy()
    rival = Switch(model)
    rival.balance = 0.5
    rival.gates[0].data = torch.tensor([[2.0, 0, 0], [0, 2.0, 0]])
    x = torch.tensor([[[1.0, 0, 0], [0, 1.0, 0], [0, 5.0, 0]]])  # the last token is padding
    loss = rival.loss(
        {"attention_mask": torch.tensor([[1, 1, 0]])},
        lambda: model(x)[:, :2].square().sum(dim=(1, 2)),
        torch.Generator(),
    )
    p = float(torch.tensor([2.0, 0.0]).softmax(0)[0])
    assert float(loss.detach()) == pytest.approx((2 * p) ** 2 + p**2 + 0.5 * 1.0)  # experts scaled by p; even load
    assert float(load_balance(torch.tensor([[100.0, 0, 0, 0]] * 5))) == pytest.approx(4.0)  # all to one expert


@pytest.mark.parametrize("baseline", [0.0, -3.0])
def test_the_gradient_of_rl_is_that_of_the_expected_loss(monkeypatch, baseline) -> None:
    torch.manual_seed(0)
    model = Toy()
    rival = Reinforce(model)
    rival.balance = 0.0
    rival.beside[0].bias.data.fill_(baseline)
    gate = rival.gates[0]
    gate.data = torch.randn(2, 3)
    x, target = torch.randn(1, 2, 3), torch.randn(1, 2, 3)

    def row_losses() -> Tensor:
        y = model(x)
        seen.append((y - target).square().sum(dim=(1, 2)) * (1 + y.sum().square()))  # tokens' choices interact
        return seen[-1]

    seen, estimate, expected_loss = [], torch.zeros_like(gate), torch.zeros(())
    for experts in product(range(2), repeat=2):
        forced = 1e6 * F.one_hot(torch.tensor(experts), 2)
        monkeypatch.setattr(gates, "gumbel", lambda logits, rng, forced=forced: forced)
        gate.grad = None
        rival.loss({"attention_mask": torch.ones(1, 2)}, row_losses, torch.Generator()).backward()
        chance = F.linear(x[0], gate).softmax(dim=-1)[range(2), experts].prod()
        estimate += chance.detach() * gate.grad
        expected_loss = expected_loss + chance * seen[-1].sum()
    gate.grad = None
    expected_loss.backward()
    torch.testing.assert_close(estimate * 2, gate.grad)  # the policy's loss is a mean over the row's two tokens


def test_rl_draws_from_the_softmax_and_serves_the_likeliest_expert_as_it_is() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0])
    drawn = gumbel(logits.expand(20_000, 3), torch.Generator().manual_seed(0)).argmax(dim=1)
    torch.testing.assert_close(drawn.bincount() / 20_000, logits.softmax(dim=0), rtol=0, atol=0.02)
    model = Toy()
    rival = Reinforce(model)
    rival.gates[0].data = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]])
    served = model(torch.tensor([[[0.1, 2.0, 0.0], [-0.1, 2.0, 0.0]]]))
    torch.testing.assert_close(served, torch.tensor([[[0.2, 4.0, 0.0], [0.1, -2.0, 0.0]]]))


def test_smear_merges_by_the_gates_probabilities() -> None:
    model = Toy()
    rival = Smear(model)
    rival.gates[0].data = torch.tensor([[3.0, 0, 0], [0, 0, 0]])
    x = torch.tensor([[[1.0, 6.0, 0.0], [-1.0, 0.0, 6.0]]])
    p = torch.tensor([3.0, 0.0]).softmax(dim=0)[0]  # chance that the first token is doubled; the second's: 1 − p
    expected = torch.stack([(2 * p - (1 - p)) * x[0, 0], (2 * (1 - p) - p) * x[0, 1]])
    torch.testing.assert_close(model(x)[0], expected)
