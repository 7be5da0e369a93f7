"""The last layer for the first token alone gives what the whole layer gives it."""

from pathlib import Path

import torch

from lab.train import small
from tanbr.lab.train.checkpoints import load, prepare
from tanbr.lab.train.first_token import read_first_token


def test_answers_and_gradients_are_those_of_the_whole_layer(tmp_path: Path) -> None:
    start = prepare(small.bert(tmp_path / "bert"), small.SPACE, tmp_path / "start", max_length=16, seed=0)
    inputs = small.ENCODER([row.text for row in small.TRAIN["RTE"]])  # of several lengths: some are padded
    assert not inputs["attention_mask"].all()
    whole, first = load(start).double(), read_first_token(load(start).double())
    logits = [model(**inputs).logits for model in (whole, first)]
    # float64 leaves a relative error of some thousand sums of eps = 2.2e-16 each
    torch.testing.assert_close(*logits, rtol=1e-11, atol=1e-12)
    for answers in logits:
        answers.square().sum().backward()
    for (name, one), (_, other) in zip(whole.named_parameters(), first.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12, msg=name)


def test_it_computes_one_token(tmp_path: Path) -> None:
    start = prepare(small.bert(tmp_path / "bert"), small.SPACE, tmp_path / "start", max_length=16, seed=0)
    model = read_first_token(load(start))
    inputs = small.ENCODER([row.text for row in small.TRAIN["RTE"]])
    assert model.bert(**inputs).last_hidden_state.shape[1] == 1


def test_another_kind_of_model_stays_as_it_is(tmp_path: Path) -> None:
    model = load(prepare(small.t5(tmp_path / "t5"), small.SPACE, tmp_path / "start", max_length=16, seed=0))
    before = [type(module).forward for module in model.modules()]
    assert [module.forward.__func__ for module in read_first_token(model).modules()] == before
