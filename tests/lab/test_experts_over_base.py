"""Survey, Gram matrices and simulations of experts that are checkpoints of their own, over rows of one's own."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tanbr
from tanbr.cli import app
from tanbr.errors import CheckpointError
from tanbr.lab.tasks import tiny
from tanbr.serve.dense import DenseModel
from tanbr.tasks.card import read_card
from tanbr.tasks.metrics import LabelSpace

TASKS = tiny.TASKS[:3]
RUN = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded experts of three tasks as dense checkpoints with heads of their own, a list, and CSV files."""
    place = tmp_path_factory.mktemp("apart")
    moe = tanbr.open(tanbr.embedded())
    own = read_card(moe.path).experts_of([task.name for task in TASKS])
    even = moe.dense()
    even.bert.save_pretrained(place / "base")
    for file in moe.path.glob("*token*"):
        (place / "base" / file.name).write_bytes(file.read_bytes())
    columns = [even.config.id2label[column] for column in range(even.config.num_labels)]
    listed = ['base = "base"']
    for task, expert in zip(TASKS, own, strict=True):
        model = moe.dense(np.eye(8)[expert])
        kept = [columns.index(name) for name in task.labels or (task.name,)]
        for part in (model.classifier.weight, model.classifier.bias):
            part.data = part.data[kept]
        model.config.id2label = dict(enumerate(task.labels or (task.name,)))
        model.config.label2id = {name: column for column, name in model.config.id2label.items()}
        model.save_pretrained(place / task.name)
        listed.append(f'[[experts]]\npath = "{task.name}"\ntask = "{task.name}"')
    (place / "experts.toml").write_text("\n".join(listed))
    (place / "rows").mkdir()
    for task in TASKS:
        with (place / "rows" / f"{task.name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            pair = task.pair
            writer.writerow(["text", "text2", "label"] if pair else ["text", "label"])
            for row in tiny.generate(task.name, 120, seed=9):
                label = task.labels[int(row.target)]
                writer.writerow([*row.text, label] if pair else [row.text, label])
    return place


def listed_rows(folder: Path) -> list[str]:
    return [str(folder / "experts.toml"), "--data", str(folder / "rows")]


def test_columns_are_put_in_the_order_of_the_labels(folder: Path) -> None:
    moe = tanbr.open(folder / "experts.toml")
    forward, backward = (DenseModel(moe, LabelSpace(tasks)) for tasks in (TASKS, TASKS[::-1]))
    one, other = (np.array(model.answers(["some words"])) for model in (forward, backward))
    columns, reversed_columns = LabelSpace(TASKS).columns, LabelSpace(TASKS[::-1]).columns
    assert columns != reversed_columns
    np.testing.assert_array_equal(one, other[:, [reversed_columns.index(name) for name in columns]])
    with pytest.raises(CheckpointError, match="the data's labels are"):
        DenseModel(moe, LabelSpace(TASKS[:1]))


def test_survey_grams_and_simulate_take_lists_of_experts_and_rows_of_ones_own(folder: Path, tmp_path: Path) -> None:
    command = ["survey", *listed_rows(folder), "--blends", "6", "--rows", "12", "--out", f"{tmp_path}/survey.json"]
    done = RUN.invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads((tmp_path / "survey-posterior.json").read_text())
    assert figures["data"] == "rows dev"
    rewards = np.array(figures["rewards"])  # experts alone come first
    assert (rewards.argmax(axis=0)[:3] == [0, 1, 2]).all()  # each is the best at its own task
    done = RUN.invoke(
        app, ["survey", *listed_rows(folder), "--grams", "regression", "--rows", "8"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "regression" in str(tanbr.open(folder / "experts.toml", method="regression").method)
    done = RUN.invoke(
        app,
        [
            "simulate", *listed_rows(folder), "--slots", "3", "--requests", "12", "--out", f"{tmp_path}/o",
            "--survey", f"{tmp_path}/survey.json",
            "--methods", "tanbr,average,average+regression,tags,best-fixed,fisher",
        ],
        catch_exceptions=False,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "o" / "simulate.json").read_text())["methods"]
    assert found["tags"]["reward"]["mean"] > found["average"]["reward"]["mean"]
