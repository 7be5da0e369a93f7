import math

import pytest
import torch

from moe.tiny import K, build
from tanbr.errors import InputError
from tanbr.lab.gates import add_gates, gates_of, gumbel, heard, real_tokens
from tanbr.moe.layer import TokenRouting, routed, sites_of

IDS = torch.tensor([[5, 6, 7], [8, 9, 0]])


def test_fresh_gates_come_from_the_seed() -> None:
    drawn = []
    for seed in (1, 1, 2):
        model = build("bert_moe")
        with pytest.raises(InputError, match="add_gates"):
            gates_of(model)
        add_gates(model, seed=seed)
        assert model.config.router
        drawn.append(torch.stack([gate.weight for gate in gates_of(model)]).detach())
    assert drawn[0].shape == (len(sites_of(model)), K, 32)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert drawn[0].std() == pytest.approx(0.02, rel=0.2)


def test_what_gates_say_is_heard_and_can_be_changed() -> None:
    model = build("bert_moe")
    add_gates(model)
    with torch.no_grad(), routed(model, TokenRouting(normalise=True)):
        with heard(model) as said:
            plain = model(input_ids=IDS).logits
        with heard(model, lambda logits: -logits) as turned:
            other = model(input_ids=IDS).logits
        again = model(input_ids=IDS).logits
    assert len(said) == len(sites_of(model))
    first, gate = said[0], gates_of(model)[0]
    assert first.seen.shape == (6, 32)
    assert torch.equal(first.logits, gate(first.seen))
    assert torch.equal(first.choice, first.logits.argmax(dim=1))
    assert torch.equal(turned[0].choice, turned[0].logits.argmin(dim=1))
    assert not torch.allclose(plain, other)
    assert torch.equal(plain, again)  # nothing is left behind
    assert len(said) == len(sites_of(model))


def test_padding_is_known_at_every_site() -> None:
    model = build("t5_moe", decoder_start_token_id=0)
    inputs = {"attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    with pytest.raises(InputError, match="labels"):
        real_tokens(model, inputs)
    real = real_tokens(model, inputs | {"labels": torch.tensor([[4, -100], [5, 6]])})
    encoder, decoder = real[: len(real) // 2], real[len(real) // 2 :]
    assert all(flags.tolist() == [[True, True, True], [True, True, False]] for flags in encoder)
    assert all(flags.tolist() == [[True, False], [True, True]] for flags in decoder)


def test_the_highest_noisy_logit_is_a_draw_from_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0])
    drawn = gumbel(logits.expand(20_000, 3), torch.Generator().manual_seed(0)).argmax(dim=1)
    torch.testing.assert_close(
        drawn.bincount() / 20_000, logits.softmax(dim=0), rtol=0, atol=6 * math.sqrt(0.25 / 20_000)
    )
