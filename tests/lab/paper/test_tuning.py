from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elsewhere import elsewhere
from tanbr.lab.paper import online
from tanbr.lab.paper.setup import Setup, scale
from tanbr.lab.paper.tuning import TunedServer, job
from tanbr.lab.simulate import Answered
from tanbr.lab.tasks import tiny
from tanbr.lab.train.finetune import BlendTuner
from tanbr.lab.train.objectives import TextToText
from tanbr.merge import open as open_moe
from tanbr.moe import embedded
from tanbr.moe.text import TextEncoder
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row


@pytest.fixture(scope="module")
def served() -> Any:
    moe = open_moe(embedded.path("t5"))
    tuner = BlendTuner(moe)
    encoder = TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"])
    rows = [row for task in tiny.TASKS for row in tiny.generate(task.name, 6, seed=3, split="test")]
    space = LabelSpace(tiny.TASKS)
    server = TunedServer(tuner, TextToText(space, encoder), {row.text: row for row in rows}, batch=16)
    return server, rows, space


def test_answers_are_written_and_scored_as_written(served: Any) -> None:
    server, rows, space = served
    own = {task.name: k for k, task in enumerate(tiny.TASKS)}
    right = []
    for task in tiny.TASKS:
        server.swap(np.eye(8)[own[task.name]])
        asked = [row for row in rows if row.task == task.name]
        written = server.answers([row.text for row in asked])
        assert all(isinstance(answer, str) for answer in written)
        right += list(space.rewards(asked, space.read(asked, written)))
    assert np.mean(right) > 0.6  # a third is chance


def test_a_task_that_hardly_came_has_no_metric() -> None:
    answered = Answered(tiny.TASKS)
    for task in tiny.TASKS:
        count = 2 if task.name == "similarity" else 5  # two rows correlate by -1, whatever the model is worth
        answered([Row(task.name, "x", float(i % 2)) for i in range(count)], np.array([1.0, 0.0, 1.0, 0.0, 1.0])[:count])
    assert set(answered.figures(least=3)) == {task.name for task in tiny.TASKS} - {"similarity"}
    assert answered.figures(least=2)["similarity"] == -1.0


def test_answers_are_written_the_same_elsewhere(served: Any) -> None:
    here, rows, space = served
    texts = [row.text for row in rows[:8]]
    here.swap(np.eye(8)[0])
    with elsewhere() as device:
        moe = open_moe(embedded.path("t5"), device=str(device))
        objective = TextToText(space, TextEncoder.of(moe.path, vocab_size=moe.config["vocab_size"]))
        there = TunedServer(BlendTuner(moe), objective, {row.text: row for row in rows}, batch=8)
        there.swap(np.eye(8)[0])
        assert there.answers(texts) == here.answers(texts)


def test_a_device_is_a_fact_of_what_is_timed_alone() -> None:
    here, there = (Setup(scale("tiny"), Path("out"), device=device) for device in ("cpu", "meta"))
    facts = job(here, "paper", 0).facts
    assert "device" not in str(facts)  # results of before there were devices stay what they are
    assert job(there, "paper", 0).facts == {**facts, "device": "meta"}
    assert [one.facts for one in online.jobs(here)] == [one.facts for one in online.jobs(there)]
