import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tanbr.errors import DataError
from tanbr.moe import embedded
from tanbr.serve.build import build, read_history
from tanbr.settings import parse
from tanbr.tasks import tiny

CONFIG = parse({"serve": {"slot_seconds": 3600, "threads": 1}}).serve


def history(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_the_embedded_model_knows_its_tasks_and_refuses_a_bad_blend_by_its_probes(tmp_path: Path) -> None:
    one_try = parse({"serve": {"slot_seconds": 3600, "threads": 1, "explore": "always", "guard": {"tries": 1}}}).serve
    live = build(None, config=one_try, state=tmp_path)
    assert live.info.tasks == tuple(task.name for task in tiny.TASKS)
    assert live.info.scales == {"similarity": (0.0, 5.0)}
    live.start()
    row = tiny.generate("sentiment", 1, seed=4)[0]
    live.submit([row.text]).result(30)
    live.end_slot()  # the router knows whose expert to try, and its probes agree
    assert live.slots(1)[0].note == ""
    assert live.state().blend.argmax() == live.info.tasks.index("sentiment")
    router: Any = live.learner.router
    wrong = np.eye(8)[live.info.tasks.index("paraphrase")]
    router.ask = lambda mix, ask=router.ask: ask(wrong)
    live.submit([row.text]).result(30)
    live.end_slot()
    assert live.slots(1)[0].note.startswith("refused: its probes earn")
    assert live.state().merge_version == 2
    live.stop()


def test_a_history_names_tasks_teaches_the_monitor_and_gives_probes(tmp_path: Path) -> None:
    rows = [row for name in ("sentiment", "acceptability") for row in tiny.generate(name, 40, seed=2)]
    path = history(
        tmp_path / "history.jsonl",
        *(
            {"text": row.text, "task": row.task, "label": tiny.BY_NAME[row.task].labels[int(row.target)]}
            for row in rows
        ),
        "",
        {"text": ["a pair", "of texts"], "task": "sentiment"},
    )
    past = read_history(path)
    assert {task.name: task.labels for task in past.tasks} == {
        "sentiment": ("negative", "positive"),
        "acceptability": ("acceptable", "unacceptable"),
    }
    labelled = past.rows_of(past.tasks)
    assert (len(past.texts), len(labelled), past.texts[-1], past.names[-1]) == (
        81,
        80,
        ("a pair", "of texts"),
        "sentiment",
    )
    live = build(embedded.path(), config=CONFIG, state=tmp_path / "state", history=path)
    assert live.info.tasks == ("sentiment", "acceptability")
    assert live.info.scales == {}  # of the card's tasks only those that the history names
    live.start()
    live.end_slot()
    assert json.loads(live.store.meta("guard"))["good"]  # its labelled lines were asked
    live.stop()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is empty"),
        (["{"], "line 1 must be like"),
        ([{"text": "a", "task": "b"}, {"text": 3, "task": "b"}], "line 2: text must be"),
        ([{"text": "a", "task": "b", "label": 1}], "label one if given"),
    ],
)
def test_a_bad_history_is_one_sentence(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_history(history(tmp_path / "history.jsonl", *lines))
