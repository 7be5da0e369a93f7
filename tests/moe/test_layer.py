"""The un-merged layer against a slow loop over sequences and experts.

Both run in float64, where what the order of additions can change (some hundred roundings of 1e-16 of values below 1e3)
is far below the 1e-7 that `assert_close` allows: no instruction set or number of threads can fail a test.
"""

import pytest
import torch
from torch.nn import functional as F

from elsewhere import elsewhere
from tanbr.errors import InputError
from tanbr.moe.families.bert import BertMoeConfig, BertMoeForSequenceClassification
from tanbr.moe.families.t5 import T5MoeConfig, T5MoeForConditionalGeneration
from tanbr.moe.layer import (
    BlendRouting,
    ExpertFfn,
    ExpertLinear,
    MoeSite,
    TaskRouting,
    TokenRouting,
    route,
    routed,
    sites_of,
)

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
        return self.run(x, lambda values: values[k])

    def merged(self, x, blend):
        return self.run(x, lambda values: torch.einsum("k,k...->...", blend, values))

    def run(self, x, of):
        """Run the FFN whose parameters `of` makes of each (K, …)."""

        def apply(linear, value):
            return F.linear(value, of(linear.weight), None if linear.bias is None else of(linear.bias))

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


def test_task_routing_averages_the_outputs_of_several_experts(site, x) -> None:
    experts = torch.tensor([[0, 1], [2, 3], [1, 0], [3, 3], [0, 2], [1, 1], [2, 0], [3, 1]])
    site.routing = TaskRouting(experts)
    expected = torch.stack([(site.one(row, a) + site.one(row, b)) / 2 for row, (a, b) in zip(x, experts, strict=True)])
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


def test_gated_merging_of_weights(site, x) -> None:
    site.routing = TokenRouting(K, mix="weights")
    expected = torch.stack([torch.stack([site.merged(t, site.gate(t).softmax(-1)) for t in row]) for row in x])
    torch.testing.assert_close(site(x), expected)


@pytest.mark.parametrize("top_k", [1, 3, K])
def test_products_compute_what_merged_weights_do(site, x, top_k) -> None:
    site.routing = TokenRouting(top_k, mix="weights")
    expected = site(x)
    site.routing = TokenRouting(top_k, mix="products")
    torch.testing.assert_close(site(x), expected)


@pytest.mark.parametrize("experts", [[0, 1, 2, 3, 0, 1, 2, 3], [3, 3, 0, 1, 3, 0, 3, 3]], ids=["equal", "unequal"])
def test_gradients_are_those_of_the_loop(site, x, experts) -> None:
    site.routing = TaskRouting(torch.tensor(experts))
    site(x).square().sum().backward()
    got = [p.grad.clone() for p in (*site.inner.parameters(), *site.outer.parameters())]
    site.zero_grad()
    torch.stack([site.one(row, k) for row, k in zip(x, experts, strict=True)]).square().sum().backward()
    for ours, theirs in zip(got, (*site.inner.parameters(), *site.outer.parameters()), strict=True):
        torch.testing.assert_close(ours, theirs.grad)


def test_a_blend_gets_a_gradient(site, x) -> None:
    logits = torch.zeros(N, K, dtype=torch.float64, requires_grad=True)
    site.routing = BlendRouting((logits + torch.arange(N)[:, None] * torch.linspace(0, 1, K)).softmax(-1))
    site(x).square().sum().backward()
    assert logits.grad.abs().sum(dim=1).min() > 0


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


BERT = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
T5 = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0, "num_experts": K}


@pytest.mark.parametrize(
    "model",
    [
        lambda: BertMoeForSequenceClassification(BertMoeConfig(**BERT, num_experts=K, router=True)),
        lambda: T5MoeForConditionalGeneration(T5MoeConfig(**T5, feed_forward_proj="gated-gelu")),
    ],
    ids=["bert", "t5 gated"],
)
def test_models_save_load_and_train(model, tmp_path) -> None:
    torch.manual_seed(0)
    model = model().eval()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    ids = torch.randint(3, 32, (4, 7))
    more = {"decoder_input_ids": ids} if isinstance(model, T5MoeForConditionalGeneration) else {}
    routing = TaskRouting(torch.tensor([0, 3, 1, 3]))
    route(again, routing)
    with routed(model, routing):
        output = model(input_ids=ids, **more)[0]
    assert all(site.routing is None for site in sites_of(model))
    torch.testing.assert_close(again(input_ids=ids, **more)[0], output, rtol=0, atol=0)
    output.square().sum().backward()
    used = [p.grad.flatten(1).abs().sum(1) > 0 for n, p in model.named_parameters() if p.dim() == 3]
    assert all(flags.tolist() == [True, True, False, True] for flags in used)


def test_a_dense_model_has_nothing_to_route() -> None:
    with pytest.raises(InputError, match="no experts"):
        route(torch.nn.Linear(2, 2), TaskRouting(torch.tensor([0])))


@pytest.mark.parametrize(
    "routing",
    [
        TaskRouting(torch.tensor([3, 3, 0, 1, 3, 0, 3, 3])),
        TaskRouting(torch.tensor([[0, 1], [2, 3]] * 4)),
        BlendRouting(torch.tensor([0.1, 0.2, 0.3, 0.4])),
        TokenRouting(2),
        TokenRouting(K, mix="products"),
    ],
    ids=lambda routing: type(routing).__name__,
)
def test_a_site_computes_the_same_elsewhere_wherever_its_routing_was_made(site, x, routing) -> None:
    site.routing = routing
    with elsewhere() as device:
        here = site(x).detach()
        there = site.to(device)(x.to(device))
        there.sum().backward()
        assert torch.equal(there.detach().cpu(), here)
        assert site.outer.weight.grad.device == device
