import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import DataError, InputError
from tanbr.lab.tasks import glue, tiny, traffic
from tanbr.lab.tasks.traffic import Traffic

POOLS = {task.name: tiny.generate(task.name, 30, seed=0) for task in tiny.TASKS[:3]}


@given(
    kind=st.sampled_from(traffic.KINDS), slots=st.integers(1, 90), seed=st.integers(0, 99),
    alpha=st.sampled_from([0.05, 0.3, 2.0]), period=st.integers(1, 50),
)  # fmt: skip
@settings(max_examples=60)
def test_every_mix_is_on_the_simplex(kind: str, slots: int, seed: int, alpha: float, period: int) -> None:
    mixes = traffic.mixes(kind, tasks=5, slots=slots, seed=seed, alpha=alpha, period=period)
    assert mixes.shape == (slots, 5)
    assert (mixes >= 0).all()
    np.testing.assert_allclose(mixes.sum(axis=1), 1.0)
    again = traffic.mixes(kind, tasks=5, slots=slots, seed=seed, alpha=alpha, period=period)
    np.testing.assert_array_equal(mixes, again)


def test_kinds_move_as_they_say() -> None:
    def steps(kind: str) -> np.ndarray:
        mixes = traffic.mixes(kind, tasks=5, slots=81, seed=1, period=20)
        return np.abs(np.diff(mixes, axis=0)).sum(axis=1)

    assert (steps("fixed") == 0).all()
    assert (np.flatnonzero(steps("switching")) + 1).tolist() == [20, 40, 60, 80]
    assert steps("dirichlet").max() < 0.11  # at most 2 in 20 slots
    assert steps("sinusoidal").min() > 0


def test_requests_follow_the_mix_and_the_seed() -> None:
    mixes = np.tile([0.7, 0.3, 0.0], (40, 1))
    slots = list(Traffic(POOLS, mixes, requests=50, seed=4))
    tags = [row.task for slot in slots for row in slot.rows]
    shares = [tags.count(name) / len(tags) for name in POOLS]
    assert shares[2] == 0
    assert abs(shares[0] - 0.7) < 0.05
    assert [slot.texts for slot in slots] == [slot.texts for slot in Traffic(POOLS, mixes, requests=50, seed=4)]
    assert slots[0].texts != next(iter(Traffic(POOLS, mixes, requests=50, seed=5))).texts


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="unknown kind of traffic 'chaotic'; choose one of fixed"):
        traffic.mixes("chaotic", tasks=3, slots=1, seed=0)
    with pytest.raises(InputError, match="alpha above 0"):
        traffic.mixes("dirichlet", tasks=3, slots=1, seed=0, alpha=0)
    with pytest.raises(InputError, match=r"\(slots, 3\)"):
        Traffic(POOLS, np.ones((2, 2)) / 2, requests=1, seed=0)
    with pytest.raises(DataError, match="no rows to draw requests from for sentiment"):
        Traffic({"sentiment": []}, np.ones((2, 1)), requests=1, seed=0)


TASKS = tiny.TASKS
ALL_POOLS = {task.name: tiny.generate(task.name, 20, seed=0) for task in TASKS}


def test_a_recorded_stream_is_read_back(tmp_path: Path) -> None:
    mixes = traffic.mixes("dirichlet", tasks=8, slots=5, seed=1)
    stream = Traffic(ALL_POOLS, mixes, requests=12, seed=1)
    traffic.record_trace(tmp_path / "t.jsonl", stream, tasks=TASKS)
    again = traffic.read_trace(tmp_path / "t.jsonl", tasks=TASKS)
    assert [slot.rows for slot in again] == [slot.rows for slot in stream]
    assert len(again) == 5
    names = [task.name for task in TASKS]
    shares = [[sum(row.task == name for row in slot.rows) / 12 for name in names] for slot in stream]
    np.testing.assert_allclose(again.mixes, shares)


def test_the_server_sees_texts_alone(tmp_path: Path) -> None:
    line = {"slot": 3, "text": ["one", "two"], "task": "similarity", "target": 2.5}
    (tmp_path / "t.jsonl").write_text(json.dumps(line) + "\n\n" + json.dumps(line | {"slot": 9}) + "\n")
    first, second = traffic.read_trace(tmp_path / "t.jsonl", tasks=TASKS)
    assert first.texts == [("one", "two")]
    assert second.rows[0].target == 2.5
    (tmp_path / "t.jsonl").write_text('{"slot": 0, "text": "a film", "task": "SST-2", "target": 1}')  # a label, too
    assert next(iter(traffic.read_trace(tmp_path / "t.jsonl", tasks=glue.TASKS))).rows[0].target == 1.0


GOOD = {"slot": 4, "text": "a film", "task": "sentiment", "target": "positive"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r"line 2: request: Invalid JSON"),
        ("[" * 100_000, r"line 2: request: Invalid JSON: recursion limit"),
        ("[]", r"line 2: request: Input should be an object"),
        ({"slot": 4}, r"line 2: text: Field required"),
        (GOOD | {"task": "chess"}, r"line 2: unknown task 'chess'; the model knows acceptability"),
        (GOOD | {"task": ["x"]}, r"line 2: task: Input should be a valid string"),
        (GOOD | {"target": "great"}, r"line 2: label must be one of negative, positive \(got 'great'\)"),
        (GOOD | {"slot": 1}, r"line 2: slots must not go back \(got 1 after 4\)"),
        (GOOD | {"slot": "x"}, r"line 2: slot: Input should be a valid integer"),
        (GOOD | {"slot": -1}, r"line 2: slot: Input should be greater than or equal to 0"),
        (GOOD | {"target": True}, r"line 2: target"),
        (GOOD | {"text": ["a", "b"]}, r"line 2: text of sentiment must be one text"),
        (GOOD | {"text": "a", "task": "similarity", "target": 1}, r"must be a list of two texts"),
        (
            GOOD | {"text": ["a", "b"], "task": "similarity", "target": 6},
            r"line 2: score must lie in \[0, 5\] \(got 6\)",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: object, says: str) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "t.jsonl").write_text(json.dumps(GOOD) + "\n" + text + "\n")
    with pytest.raises(DataError, match=says):
        traffic.read_trace(tmp_path / "t.jsonl", tasks=TASKS)


def test_no_file_no_requests(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the trace"):
        traffic.read_trace(tmp_path / "none", tasks=TASKS)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DataError, match="holds no requests"):
        traffic.read_trace(tmp_path / "empty", tasks=TASKS)
