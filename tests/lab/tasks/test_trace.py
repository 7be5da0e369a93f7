import json
from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import DataError
from tanbr.lab.tasks import tiny, trace, traffic
from tanbr.lab.tasks.traffic import Traffic

TASKS = tiny.TASKS
POOLS = {task.name: tiny.generate(task.name, 20, seed=0) for task in TASKS}


def test_a_recorded_stream_is_read_back(tmp_path: Path) -> None:
    mixes = traffic.mixes("dirichlet", tasks=8, slots=5, seed=1)
    stream = Traffic(POOLS, mixes, requests=12, seed=1)
    trace.record(tmp_path / "t.jsonl", stream, tasks=TASKS)
    again = trace.read(tmp_path / "t.jsonl", tasks=TASKS)
    assert [slot.rows for slot in again] == [slot.rows for slot in stream]
    assert len(again) == 5
    names = [task.name for task in TASKS]
    shares = [[sum(row.task == name for row in slot.rows) / 12 for name in names] for slot in stream]
    np.testing.assert_allclose(again.mixes, shares)


def test_the_server_sees_texts_alone(tmp_path: Path) -> None:
    line = {"slot": 3, "text": ["one", "two"], "task": "similarity", "target": 2.5}
    (tmp_path / "t.jsonl").write_text(json.dumps(line) + "\n\n" + json.dumps(line | {"slot": 9}) + "\n")
    first, second = trace.read(tmp_path / "t.jsonl", tasks=TASKS)
    assert first.texts == [("one", "two")]
    assert second.rows[0].target == 2.5


GOOD = {"slot": 4, "text": "a film", "task": "sentiment", "target": "positive"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r"line 2 is not JSON"),
        ("[" * 100_000, r"line 2 is nested too deeply"),
        ("[]", r"line 2 must be an object with slot, text, task, target; 'slot' is missing"),
        (GOOD | {"task": "chess"}, r"line 2: unknown task 'chess'; the model knows acceptability"),
        (GOOD | {"task": ["x"]}, r"line 2: unknown task \['x'\]"),
        (GOOD | {"target": "great"}, r"line 2: target of sentiment must be one of negative, positive \(got 'great'\)"),
        (GOOD | {"slot": 1}, r"line 2: slots must not go back \(got 1 after 4\)"),
        (GOOD | {"slot": "x"}, r"line 2: slot must be a whole number"),
        (GOOD | {"text": ["a", "b"]}, r"line 2: text of sentiment must be one text"),
        (GOOD | {"text": "a", "task": "similarity", "target": 1}, r"must be a list of two texts"),
        (GOOD | {"text": ["a", "b"], "task": "similarity", "target": 6}, r"must be a number in \[0, 5\] \(got 6\)"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: object, says: str) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "t.jsonl").write_text(json.dumps(GOOD) + "\n" + text + "\n")
    with pytest.raises(DataError, match=says):
        trace.read(tmp_path / "t.jsonl", tasks=TASKS)


def test_no_file_no_requests(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the trace"):
        trace.read(tmp_path / "none", tasks=TASKS)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DataError, match="holds no requests"):
        trace.read(tmp_path / "empty", tasks=TASKS)
