import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.rivals.toy import D, Toy
from moe.tiny import build
from tanbr.lab.gates import decoder_sites, gates_of
from tanbr.lab.rivals.smear import Smear
from tanbr.moe.layer import BlendRouting, TaskRouting, routed

ONES = {"attention_mask": torch.ones(1, 2)}


def test_merges_by_hand() -> None:
    model = Toy()
    gate = torch.tensor([[3.0, 0, 0], [0, 0, 0]])
    x = torch.tensor([[[1.0, 6.0, 0.0], [-1.0, 0.0, 6.0]]])
    token, sequence = Smear(model), Smear(model, per="sequence")
    token.trained()[0].data = gate
    p = torch.tensor([3.0, 0.0]).softmax(dim=0)[0]  # chance that the first token is doubled; the second's: 1 − p
    with token.serving(ONES):
        expected = torch.stack([(2 * p - (1 - p)) * x[0, 0], (2 * (1 - p) - p) * x[0, 1]])
        torch.testing.assert_close(model(x)[0], expected)
    with sequence.serving(ONES):  # the mean token says nothing: both experts alike, 2/2 − 1/2
        torch.testing.assert_close(model(x), 0.5 * x)


@pytest.mark.parametrize("per", ["token", "sequence"])
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_a_sure_gate_is_that_expert(per, seed) -> None:
    rng = torch.Generator().manual_seed(seed)
    model = Toy(torch.randn(3, D, D, generator=rng))
    rival = Smear(model, per=per)
    x = torch.randn(4, 2, D, generator=rng)
    x[..., 0] = 1.0
    for expert in range(3):
        rival.trained()[0].data = torch.zeros(3, D)
        rival.trained()[0].data[expert, 0] = 1e4
        with torch.inference_mode():
            with rival.serving({"attention_mask": torch.ones(4, 2)}):
                merged = model(x)
            with routed(model, TaskRouting(torch.full((4,), expert))):
                torch.testing.assert_close(merged, model(x))


def test_a_decoder_reads_the_question_not_the_answer() -> None:
    model = build("t5_moe", decoder_start_token_id=0)
    rival = Smear(model, per="sequence")
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    blends = []
    for label in (8, 9):
        with rival.serving(inputs), torch.no_grad():
            hidden = model(**inputs, labels=torch.tensor([[label]])).encoder_last_hidden_state
            blends.append([site.routing for site in decoder_sites(model)])
    summary = hidden[0, :2].mean(dim=0)
    gates = gates_of(model)[-len(blends[0]) :]
    for gate, one, other in zip(gates, *blends, strict=True):
        assert isinstance(one, BlendRouting)
        assert torch.equal(one.blends, other.blends)
        torch.testing.assert_close(one.blends[0], gate(summary).softmax(dim=-1))
