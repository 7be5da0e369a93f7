from pathlib import Path

import numpy as np

from serve.text_model import write
from tanbr.experiments.answers import Answers, Blended, Tagged
from tanbr.experiments.compare import KnownMix, compare, read
from tanbr.merge import open as open_moe
from tanbr.router import Tanbr
from tanbr.serve.loop import SlotLoop
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task
from tanbr.tasks.traffic import Slot

SPACE = LabelSpace((Task("mood", ("accuracy",), ("w1", "w2")), Task("grade", ("pearson",), (), (0.0, 5.0))))
ROWS = (Row("mood", "w5", 1.0), Row("grade", "w6 w7", 2.0), Row("mood", "w8", 0.0))


def test_answers_are_read_whether_they_are_logits_or_texts() -> None:
    logits = np.array([[0.0, 3.0, 0.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    np.testing.assert_allclose(read(ROWS, logits, SPACE), [1.0, 2.5, 1.0], rtol=1e-12)
    np.testing.assert_array_equal(read(ROWS, ["w2", "2.4", "w9"], SPACE), [1.0, 2.4, -1.0])


class Traffic:
    """The same three rows, slot after slot."""

    mixes = np.tile([0.5, 0.5], (3, 1))

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([Slot(self.mixes[number], ROWS) for number in range(3)])


def test_a_model_that_writes_can_be_compared_online(tmp_path: Path) -> None:
    answers = Answers(open_moe(write("t5_moe", tmp_path / "model")))
    task_of = {row.text: int(row.task == "grade") for row in ROWS}
    servers = {"blended": Blended(answers), "tagged": Tagged(answers, task_of, np.eye(4)[:2])}
    loops = {
        name: SlotLoop(server, Tanbr(4, 2, seed=0), KnownMix(Traffic.mixes), 2)  # type: ignore[arg-type]
        for name, server in servers.items()
    }
    seen: list[np.ndarray] = []
    result = compare(loops, Traffic(), space=SPACE, best="tagged", collect=lambda _, said: seen.append(said))  # type: ignore[arg-type]
    assert [len(records) for records in result.records.values()] == [3, 3]
    for record in result.records["blended"]:
        np.testing.assert_array_equal(record.counts, [2, 1])
        assert ((record.reward >= 0) & (record.reward <= 1)).all()
    own = [answers.of(np.eye(4)[task_of[row.text]], [row.text])[0] for row in ROWS]
    np.testing.assert_array_equal(seen[1], read(ROWS, own, SPACE))  # the second method's, in the first slot
