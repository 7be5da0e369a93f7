"""The stand-in for another device: the CPU's values, and no mixing."""

import pytest
import torch

from elsewhere import elsewhere


def test_it_computes_what_the_cpu_does() -> None:
    here = torch.nn.Linear(3, 2)
    seen = torch.randn(5, 3)
    wanted = torch.autograd.grad(here(seen).square().sum(), here.weight)[0]
    with elsewhere() as device:
        there = torch.nn.Linear(3, 2).to(device)
        there.load_state_dict(here.state_dict())
        there(seen.to(device)).square().sum().backward()
        assert there.weight.grad is not None
        assert there.weight.grad.device == device
        assert torch.equal(there.weight.grad.cpu(), wanted)
        assert torch.tensor([1.5, 2.0], device=device).tolist() == [1.5, 2.0]
        assert torch.arange(6, device=device).view(2, 3)[:, [2, 0]].tolist() == [[2, 0], [5, 3]]
        assert float(torch.arange(4, device=device).sum()) == 6


def test_two_devices_do_not_mix() -> None:
    with elsewhere() as device:
        here, there = torch.ones(3), torch.ones(3, device=device)
        for mixed in (lambda: here + there, lambda: there @ here, lambda: here[there.long()]):
            with pytest.raises(RuntimeError, match="got tensors of two devices"):
                mixed()
        with pytest.raises(TypeError, match=r"use Tensor.cpu\(\) first"):
            there.numpy()
        assert (there + torch.tensor(1.0)).tolist() == [2.0] * 3  # a number is of no device
        here.copy_(there * 2)
        assert here.tolist() == [2.0] * 3
