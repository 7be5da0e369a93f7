"""The un-merged layer against a slow loop over sequences and experts.

Both run in float64, where what the order of additions can change (some hundred roundings of 1e-16 of values below 1e3)
is far below the 1e-7 that `assert_close` allows: no instruction set or number of threads can fail a test.
"""

import pytest
import torch
from torch.nn import functional as F

from tanbr.errors import InputError
from tanbr.moe.layer import BlendRouting, ExpertFfn, ExpertLinear, MoeSite, TaskRouting, TokenRouting

K, D, HIDDEN, N, LENGTH = 4, 6, 10, 8, 3


class Site(MoeSite):
    def __init__(self, *, gated: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(ExpertLinear(K, D, HIDDEN, bias=bias, std=0.5) for _ in range(1 + gated))
        self.outer = ExpertLinear(K, HIDDEN, D, bias=bias, std=0.5)
        self.gate = torch.nn.Linear(D, K, bias=False)
        for linear in (*self.inner, self.outer):
            if linear.bias is not None:
                torch.nn.init.normal_(linear.bias)

    def forward(self, x):
        return ExpertFfn(list(self.inner), self.outer, F.gelu, torch.nn.Identity())(x, self)

    def one(self, x, k):
        return self.merged(x, torch.eye(K).double()[k])

    def merged(self, x, blend):
        """Run the FFN whose parameters are a blend (K,) of the experts'."""

        def apply(linear, value):
            weight, bias = torch.einsum("k,k...->...", blend, linear.weight), linear.bias
            return F.linear(value, weight, None if bias is None else blend @ bias)

        hidden = F.gelu(apply(self.inner[0], x))
        if len(self.inner) == 2:
            hidden = hidden * apply(self.inner[1], x)
        return apply(self.outer, hidden)


@pytest.fixture(params=[(False, True), (True, False)], ids=["plain", "gated"])
def site(request):
    torch.manual_seed(0)
    return Site(gated=request.param[0], bias=request.param[1]).double()


@pytest.fixture
def x():
    return torch.randn(N, LENGTH, D, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize(
    "experts",
    [[0, 1, 2, 3, 0, 1, 2, 3], [3, 3, 0, 1, 3, 0, 3, 3], [2] * 8, [0, 0, 0, 0, 1, 1, 1, 1]],
    ids=["equal groups", "unequal groups", "one expert", "two of four"],
)
def test_task_routing_runs_each_sequence_through_its_expert(site, x, experts) -> None:
    site.routing = TaskRouting(torch.tensor(experts))
    expected = torch.stack([site.one(row, k) for row, k in zip(x, experts, strict=True)])
    torch.testing.assert_close(site(x), expected)


def test_blends_of_weights(site, x) -> None:
    blends = torch.rand(N, K, generator=torch.Generator().manual_seed(2)).double().softmax(dim=1)
    blends[3] = blends[5]
    site.routing = BlendRouting(blends)
    torch.testing.assert_close(site(x), torch.stack([site.merged(row, b) for row, b in zip(x, blends, strict=True)]))
    site.routing = BlendRouting(blends[0])
    torch.testing.assert_close(site(x), site.merged(x, blends[0]))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, K])
def test_token_routing_follows_the_gate(site, x, top_k, normalise) -> None:
    site.routing = TokenRouting(top_k, normalise=normalise)
    for token, y in zip(x.flatten(0, 1), site(x).flatten(0, 1), strict=True):
        shares, chosen = site.gate(token).softmax(-1).topk(top_k)
        shares = shares / shares.sum() if normalise else shares
        expected = sum(p * site.one(token, int(k)) for p, k in zip(shares, chosen, strict=True))
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("top_k", [1, 3, K])
def test_products_compute_what_merged_weights_do(site, x, top_k) -> None:
    outputs = []
    for site.routing in (TokenRouting(top_k, mix="weights"), TokenRouting(top_k, mix="products")):
        outputs.append(site(x))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        (None, "needs a routing"),
        (TaskRouting(torch.tensor([0, 1])), "batch of 8"),
        (TaskRouting(torch.full((N,), K)), "0..3"),
        (TaskRouting(torch.zeros(N)), "whole numbers"),
        (BlendRouting(torch.ones(N, K + 1)), r"\(8, 4\)"),
        (TokenRouting(0), "1..4"),
    ],
)
def test_bad_routing_is_refused(site, x, routing, words) -> None:
    site.routing = routing
    with pytest.raises(InputError, match=words):
        site(x)
