"""The smallest model with gates: one site whose two experts double a token, and turn it around."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from tanbr.moe.layer import ExpertFfn, ExpertLinear, MoeSite

D = 3


class Site(MoeSite):
    def __init__(self, maps: Tensor) -> None:  # (K, D, D)
        super().__init__()
        self.inner = ExpertLinear(len(maps), D, D, bias=False, std=1.0)
        self.outer = ExpertLinear(len(maps), D, D, bias=False, std=1.0)
        self.inner.weight.data = torch.eye(D).repeat(len(maps), 1, 1)
        self.outer.weight.data = maps
        self.gate = None

    def forward(self, x: Tensor) -> Tensor:
        return ExpertFfn([self.inner], self.outer, nn.Identity(), nn.Identity())(x, self)


class Toy(nn.Module):
    """Takes tokens (n, length, D) as they are."""

    def __init__(self, maps: Tensor | None = None) -> None:
        super().__init__()
        self.config = SimpleNamespace(router=False)
        self.site = Site(torch.stack([2 * torch.eye(D), -torch.eye(D)]) if maps is None else maps)
        self.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.site(x)
        return y


def sorted_tokens(rows: int, length: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw rows whose tokens' first entry says which expert is right for all of them, and what that expert makes."""
    x = torch.randn(rows, length, D, generator=rng)
    positive = torch.arange(rows) % 2 == 0
    x[..., 0] = torch.where(positive, 1.0, -1.0)[:, None]
    return x, torch.where(positive[:, None, None], 2 * x, -x)
