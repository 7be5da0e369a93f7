"""What every rival with trained gates must do; what is particular to one is in its own file."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lab.rivals.toy import Toy, sorted_tokens
from moe.tiny import build
from tanbr.lab.gates import gates_of
from tanbr.lab.rivals.rl import Reinforce
from tanbr.lab.rivals.smear import Smear
from tanbr.lab.rivals.switch import Switch
from tanbr.moe.families.bert import BertMoeForSequenceClassification
from tanbr.moe.layer import sites_of

RIVALS = {"switch": Switch, "rl": Reinforce, "smear": Smear}
each = pytest.mark.parametrize("make", RIVALS.values(), ids=RIVALS)
families = pytest.mark.parametrize("family", ["bert_moe", "t5_moe"])


def batch(model, rows: int = 3):
    """Token ids with padding, and a function of the task losses per row."""
    rng = torch.Generator().manual_seed(0)
    mask = torch.ones(rows, 5, dtype=torch.int64)
    mask[0, 3:] = 0
    inputs = {"input_ids": torch.randint(3, 64, (rows, 5), generator=rng) * mask, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["labels"] = torch.tensor([[4, 5], [6, -100], [7, 8]])[:rows]
    inputs = {name: value.to(model.device) for name, value in inputs.items()}

    def row_losses():
        logits = model(**inputs).logits
        if model.config.is_encoder_decoder:
            return F.cross_entropy(logits.transpose(1, 2), inputs["labels"], reduction="none").sum(dim=1)
        return F.cross_entropy(logits, (torch.arange(rows) % 2).to(logits.device), reduction="none")

    return inputs, row_losses


def whole(family):
    return build(family, **({"decoder_start_token_id": 0} if family == "t5_moe" else {}))


@each
@families
def test_a_step_teaches_the_gates_and_draws_by_the_generator(make, family) -> None:
    model = whole(family)
    rival = make(model)
    inputs, row_losses = batch(model)
    first, second = (rival.loss(inputs, row_losses, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    first.backward()
    assert len(rival.trained()) >= len(sites_of(model))
    assert all(parameter.grad.abs().sum() > 0 for parameter in rival.trained())
    assert all(site.routing is None for site in sites_of(model))  # a rival leaves the model as it found it
    assert not {id(p) for p in rival.parameters()} & {id(p) for p in model.parameters()}


@each
@families
def test_padding_changes_no_answer(make, family) -> None:
    model = whole(family)
    rival = make(model)
    inputs, _ = batch(model)
    longer = {name: F.pad(value, (0, 3)) if name != "labels" else value for name, value in inputs.items()}
    with torch.inference_mode():
        with rival.serving():
            short = model(**inputs).logits
        with rival.serving():
            torch.testing.assert_close(model(**longer).logits, short, rtol=1e-4, atol=1e-4)


@each
def test_generated_rows_do_not_meet(make) -> None:
    model = whole("t5_moe")
    rival = make(model)
    inputs = {name: value for name, value in batch(model)[0].items() if name != "labels"}
    generate = partial(model.generate, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    with rival.serving():
        together = generate(**inputs)
    for row in range(3):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        with rival.serving():
            assert generate(**alone)[0].tolist() == together[row].tolist()


@each
def test_gates_are_saved_with_the_model(make, tmp_path) -> None:
    model = build("bert_moe")
    rival = make(model, seed=5)
    model.save_pretrained(tmp_path)
    again = BertMoeForSequenceClassification.from_pretrained(tmp_path)
    for gate, other in zip(gates_of(model), gates_of(again), strict=True):
        assert torch.equal(gate.weight, other.weight)
    kept = make(again, seed=6)  # a gate that is there is not drawn anew
    assert torch.equal(kept.trained()[0], rival.trained()[0])


@each
def test_it_learns_which_expert_is_right(make) -> None:
    model = Toy()
    rival = make(model)
    optimizer = torch.optim.Adam(rival.trained(), lr=0.1)
    rng = torch.Generator().manual_seed(0)

    def served() -> float:
        x, target = sorted_tokens(64, 4, torch.Generator().manual_seed(99))
        with torch.inference_mode(), rival.serving():
            return float((model(x) - target).square().mean())

    before = served()
    for _ in range(120):
        x, target = sorted_tokens(8, 4, rng)
        loss = rival.loss(
            {"attention_mask": torch.ones(8, 4)},
            lambda x=x, target=target: (model(x) - target).square().mean(dim=(1, 2)),
            rng,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert served() < 0.1 * before
