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
from tanbr.lab.train.objectives import Batches, Classification, TextToText, objective_of
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task

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


def test_figures_keep_rows_and_answers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tanbr.lab.train.objectives._ANSWERED", 2)
    rows = [Row("SST-2", " ".join([f"w{i}"] * (1 + i % 4)), float(i % 2)) for i in range(9)]  # answered by length
    right = {small.ENCODER([f"w{i}"])["input_ids"][0, 0].item(): str(i % 2) for i in range(9)}

    def knows(input_ids: torch.Tensor, **_: Any) -> Any:
        columns = torch.tensor([small.SPACE.columns.index(right[first]) for first in input_ids[:, 0].tolist()])
        return SimpleNamespace(logits=torch.nn.functional.one_hot(columns, len(small.SPACE.columns)))

    knows.device = torch.device("cpu")  # type: ignore[attr-defined]
    assert HEAD.figure(knows, rows) == 1.0


def test_a_head_of_other_tasks_is_refused(tmp_path: Any) -> None:
    model = load(prepare(small.bert(tmp_path / "bert"), small.SPACE, tmp_path / "out", max_length=16, seed=0))
    assert isinstance(objective_of(model.config, small.SPACE, small.ENCODER), Classification)
    headless = load(tmp_path / "bert")
    with pytest.raises(CheckpointError, match=r"head must have the columns entailment, .* \(got LABEL_0, LABEL_1\)"):
        objective_of(headless.config, small.SPACE, small.ENCODER)
    with pytest.raises(ConfigError, match="--tagged is for models that write"):
        objective_of(model.config, small.SPACE, small.ENCODER, tagged=True)


def batches(rows=small.TRAIN, seed: int = 0) -> Batches:
    return Batches(rows, objective=HEAD, seed=seed)


def test_an_epoch_visits_every_row_once() -> None:
    source, rows = batches(), small.TRAIN["RTE"]  # 10 rows: 5 batches

    def epoch(number: int) -> list[list[int]]:
        drawn = [source.of(0, step, size=2).truth["columns"] for step in range(5 * number, 5 * number + 5)]
        inputs = [source.of(0, step, size=2).inputs["input_ids"] for step in range(5 * number, 5 * number + 5)]
        assert sum(map(len, drawn)) == len(rows)
        return [row[row != 0].tolist() for batch in inputs for row in batch]

    whole = [ids[ids != 0].tolist() for ids in HEAD.encode(rows).inputs["input_ids"]]
    assert sorted(epoch(0)) == sorted(epoch(1)) == sorted(whole)
    assert epoch(0) != epoch(1)


def test_labels_of_a_task_scored_by_matthews_weigh_alike() -> None:
    tasks = (Task("CoLA", metrics=("matthews",), labels=("0", "1")), small.TASKS[1])
    rows = {
        "CoLA": [Row("CoLA", f"w{i}", float(i >= 2)) for i in range(8)],  # two of one label, six of the other
        "SST-2": [Row("SST-2", f"w{i}", float(i >= 2)) for i in range(8)],
    }
    objective = Classification(LabelSpace(tasks), small.ENCODER)
    batch = Batches(rows, objective=objective, seed=0).at(0, size=8)
    truth = batch.tasks.tolist(), batch.truth["columns"].tolist(), batch.truth["weight"].tolist()
    weights = {(task, column): weight for task, column, weight in zip(*truth, strict=True)}
    third = float(np.float32(8 / 12))
    assert weights == {(0, 0): 2.0, (0, 1): third, (1, 0): 1.0, (1, 1): 1.0}
