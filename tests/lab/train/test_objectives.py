"""Losses by hand, and answers read as what they mean."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lab.train import small
from tanbr.errors import CheckpointError, ConfigError
from tanbr.lab.train.checkpoints import load, prepare
from tanbr.lab.train.objectives import Classification, TextToText, joined, objective_of
from tanbr.tasks.rows import Row

HEAD = Classification(small.SPACE, small.ENCODER)
TEXT = TextToText(small.SPACE, small.ENCODER)
EXACT = {"rtol": 1e-10, "atol": 1e-12}  # float64: sums of some hundred products, each with an error of 1.1e-16
MIXED = [small.TRAIN["RTE"][1], small.TRAIN["SST-2"][0], small.TRAIN["STS-B"][5]]


def test_a_row_of_each_kind_by_hand() -> None:
    logits = torch.zeros(3, len(small.SPACE.columns))
    logits[0, 1] = 2.0  # not_entailment, which is right
    labels = small.SPACE.classes
    assert labels == 4
    right = -math.log(math.exp(2) / (math.exp(2) + 3))
    torch.testing.assert_close(
        HEAD.losses(logits, HEAD.encode(MIXED)),
        torch.tensor([right, math.log(4), math.log(2)]),  # a score of any size costs log 2 at logit 0
        rtol=16 * 2**-24,  # float32: an exponential, a sum, a logarithm
        atol=0,
    )


def test_text_losses_are_transformers_own(tmp_path: Any) -> None:
    model = load(small.t5(tmp_path / "t5")).double()
    for row in MIXED:  # one at a time: transformers averages over tokens, not over rows
        batch = TEXT.encode([row])
        torch.testing.assert_close(TEXT.row_losses(model, batch)[0], model(**TEXT.inputs(batch)).loss, **EXACT)
    together = TEXT.row_losses(model, TEXT.encode(MIXED))
    apart = [TEXT.row_losses(model, TEXT.encode([row]))[0] for row in MIXED]
    torch.testing.assert_close(together, torch.stack(apart), **EXACT)


def test_by_task_averages_the_rows_of_each_task_that_is_there() -> None:
    batch = HEAD.encode([MIXED[0], MIXED[2], MIXED[2]])
    assert HEAD.by_task(torch.tensor([1.0, 2.0, 4.0]), batch) == {"RTE": 1.0, "STS-B": 3.0}


def test_a_batch_is_padded_to_its_own_longest_row() -> None:
    pool = HEAD.encode(small.TRAIN["RTE"])
    shortest = pool.lengths.argsort()[:3]
    batch = pool.take(shortest)
    assert batch.inputs["input_ids"].shape == (3, int(pool.lengths[shortest].max()))
    both = joined([batch, pool])
    assert len(both) == 3 + len(pool)
    assert torch.equal(both.inputs["input_ids"][3:], pool.inputs["input_ids"])
    assert both.inputs["attention_mask"][:3].sum() == batch.inputs["attention_mask"].sum()


class Parrot:
    """Writes the same few texts whatever it reads."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.tensor([small.ENCODER.tokenizer(self.texts.pop(0))["input_ids"] for _ in input_ids])


def test_written_answers_are_understood() -> None:
    rows = [MIXED[0], MIXED[0], MIXED[1], MIXED[2], MIXED[2]]
    parrot = Parrot("not_entailment", "1", "1", "3.8", "entailment")
    assert TEXT.answers(parrot, rows, TEXT.encode(rows)).tolist() == [1.0, -1.0, 1.0, 3.8, -1.0]


def test_figures_keep_rows_and_answers_together() -> None:
    rows = [Row("SST-2", " ".join([f"w{i}"] * (1 + i % 4)), float(i % 2)) for i in range(9)]  # answered by length
    right = {small.ENCODER([f"w{i}"])["input_ids"][0, 0].item(): str(i % 2) for i in range(9)}

    def knows(input_ids: torch.Tensor, **_: Any) -> Any:
        columns = torch.tensor([small.SPACE.columns.index(right[first]) for first in input_ids[:, 0].tolist()])
        return SimpleNamespace(logits=torch.nn.functional.one_hot(columns, len(small.SPACE.columns)))

    knows.device = torch.device("cpu")  # type: ignore[attr-defined]
    assert HEAD.figure(knows, rows, size=2) == 1.0


def test_a_head_of_other_tasks_is_refused(tmp_path: Any) -> None:
    model = load(prepare(small.bert(tmp_path / "bert"), small.SPACE, tmp_path / "out", max_length=16, seed=0))
    assert isinstance(objective_of(model.config, small.SPACE, small.ENCODER), Classification)
    headless = load(tmp_path / "bert")
    with pytest.raises(CheckpointError, match=r"head must have the columns entailment, .* \(got LABEL_0, LABEL_1\)"):
        objective_of(headless.config, small.SPACE, small.ENCODER)
    with pytest.raises(ConfigError, match="--tagged is for models that write"):
        objective_of(model.config, small.SPACE, small.ENCODER, tagged=True)


def test_targets_of_graded_tasks_lie_on_their_scale() -> None:
    batch = HEAD.encode([Row("STS-B", ("w1", "w2"), 2.5)])
    assert np.isclose(batch.truth["targets"].item(), 0.5)
