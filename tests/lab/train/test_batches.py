"""Batches by step number."""

import numpy as np
import torch

from lab.train import small
from tanbr.lab.train.batches import Batches
from tanbr.lab.train.objectives import Classification
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task

OBJECTIVE = Classification(small.SPACE, small.ENCODER)
LONG = {task.name: small.rows(task, 200) for task in small.TASKS}


def batches(rows=small.TRAIN, size: int = 2, seed: int = 0) -> Batches:
    return Batches(rows, objective=OBJECTIVE, sizes=[size] * 3, seed=seed)


def test_an_epoch_visits_every_row_once() -> None:
    source, rows = batches(), small.TRAIN["RTE"]  # 10 rows: 5 batches

    def epoch(number: int) -> list[list[int]]:
        drawn = [source.of(0, step).truth["columns"] for step in range(5 * number, 5 * number + 5)]
        inputs = [source.of(0, step).inputs["input_ids"] for step in range(5 * number, 5 * number + 5)]
        assert sum(map(len, drawn)) == len(rows)
        return [row[row != 0].tolist() for batch in inputs for row in batch]

    whole = [ids[ids != 0].tolist() for ids in OBJECTIVE.encode(rows).inputs["input_ids"]]
    assert sorted(epoch(0)) == sorted(epoch(1)) == sorted(whole)
    assert epoch(0) != epoch(1)


def test_a_batch_depends_on_its_step_and_seed_alone() -> None:
    one, other = batches(), batches()
    other.of(1, 30)  # another way to get there
    assert torch.equal(one.of(1, 3).inputs["input_ids"], other.of(1, 3).inputs["input_ids"])
    seeded = batches(seed=1)
    assert any(
        not torch.equal(one.at(step).truth["columns"], seeded.at(step).truth["columns"])
        or not torch.equal(one.at(step).truth["targets"], seeded.at(step).truth["targets"])
        for step in range(3)
    )


def test_rows_of_like_length_share_a_batch() -> None:
    source = batches(LONG, size=5)
    drawn = [source.of(0, step) for step in range(40)]
    padding = sum(int((batch.inputs["attention_mask"] == 0).sum()) for batch in drawn)
    assert padding < 0.05 * sum(batch.inputs["attention_mask"].numel() for batch in drawn)
    assert len({batch.inputs["input_ids"].shape[1] for batch in drawn}) > 2


def test_all_tasks_as_one_batch() -> None:
    assert batches().at(4).tasks.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_mixed_batch_follows_its_mix() -> None:
    source = batches(LONG)
    batch = source.mixed(7, mix=np.array([0.0, 1.0, 0.0]), size=6)
    assert batch.tasks.tolist() == [1] * 6
    counts = np.bincount(source.mixed(8, mix=np.array([0.5, 0.0, 0.5]), size=400).tasks)
    assert counts[1] == 0
    assert abs(counts[0] - 200) < 60
    again = batches(LONG).mixed(7, mix=np.array([0.0, 1.0, 0.0]), size=6)
    assert torch.equal(batch.inputs["input_ids"], again.inputs["input_ids"])


def test_labels_of_a_task_scored_by_matthews_weigh_alike() -> None:
    tasks = (Task("CoLA", metrics=("matthews",), labels=("0", "1")), small.TASKS[1])
    rows = {
        "CoLA": [Row("CoLA", f"w{i}", float(i >= 2)) for i in range(8)],  # two of one label, six of the other
        "SST-2": [Row("SST-2", f"w{i}", float(i >= 2)) for i in range(8)],
    }
    objective = Classification(LabelSpace(tasks), small.ENCODER)
    batch = Batches(rows, objective=objective, sizes=[8, 8], seed=0).at(0)
    truth = batch.tasks.tolist(), batch.truth["columns"].tolist(), batch.truth["weight"].tolist()
    weights = {(task, column): weight for task, column, weight in zip(*truth, strict=True)}
    third = float(np.float32(8 / 12))
    assert weights == {(0, 0): 2.0, (0, 1): third, (1, 0): 1.0, (1, 1): 1.0}


def test_batches_of_other_sizes_are_of_the_same_rows() -> None:
    source = batches(LONG, size=4)
    source.of(0, 1)
    other = source.resized([8, 2, 4])
    assert [len(other.of(task, 3)) for task in range(3)] == [8, 2, 4]
    assert [len(source.of(task, 3)) for task in range(3)] == [4, 4, 4]
    assert torch.equal(source.of(2, 5).inputs["input_ids"], other.of(2, 5).inputs["input_ids"])
