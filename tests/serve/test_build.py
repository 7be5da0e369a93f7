import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.text_model import write
from tanbr.errors import CheckpointError, DataError, SettingsError
from tanbr.lab.settings import parse
from tanbr.lab.tasks import tiny
from tanbr.moe import embedded
from tanbr.monitor.config import MonitorConfig
from tanbr.router import Tanbr
from tanbr.serve.build import build, read_history
from tanbr.serve.records import Feedback

CONFIG = parse({"serve": {"slot_seconds": 3600, "threads": 1}}).serve


def history(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_the_embedded_model_knows_its_tasks_and_refuses_a_bad_blend_by_its_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tanbr.loop.turn.TRIES", 1)
    always = parse({"serve": {"slot_seconds": 3600, "threads": 1, "explore": "always"}}).serve
    live = build(None, config=always, state=tmp_path)
    assert live.info.tasks == tuple(task.name for task in tiny.TASKS)
    assert live.info.scales == {"similarity": (0.0, 5.0)}
    live.start()
    row = tiny.generate("sentiment", 1, seed=4)[0]
    live.submit([row.text]).result(30)
    live.end_slot()  # the router knows whose expert to try, and its probes agree
    assert live.slots(1)[0].note == ""
    assert live.state().blend.argmax() == live.info.tasks.index("sentiment")
    wrong, ask = np.eye(8)[live.info.tasks.index("paraphrase")], Tanbr.ask
    live.submit([row.text]).result(30)
    with monkeypatch.context() as patched:
        patched.setattr(Tanbr, "ask", lambda router, mix: ask(router, wrong))
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
    assert (len(past), past[-1].text, past[-1].task) == (81, ("a pair", "of texts"), "sentiment")
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
        ([{"text": "a", "task": "b"}, {"text": 3, "task": "b"}], "line 2 must be .* \\(text"),
        ([{"text": "a", "task": "b", "label": 1}], "\\(label"),
    ],
)
def test_a_bad_history_is_one_sentence(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_history(history(tmp_path / "history.jsonl", *lines))


def test_experts_that_do_not_merge_are_refused_unless_forced(tmp_path: Path) -> None:
    model = write("t5_moe", tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"should not be merged: the experts share no ancestor .* --force"):
        build(model, config=CONFIG, state=tmp_path / "state")
    live = build(model, config=CONFIG, state=tmp_path / "state", force=True)
    assert live.info.expert_names == tuple(f"expert {k} of 4" for k in (1, 2, 3, 4))
    live.stop()


def test_a_restart_goes_on_with_the_settings_it_is_given_or_says_why_it_cannot(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"explore": "always"})
    live = build(None, config=config, state=tmp_path)
    live.start()
    ids = live.submit(["a good film", "a bad film"]).result(30).request_ids
    live.feedback([Feedback(i, reward=1.0, task="sentiment") for i in ids])
    live.end_slot()
    live.end_slot()
    slot = live.state().slot
    assert np.isfinite(live.state().estimated_regret)
    live.stop()
    changed = parse({"router": {"default": {"beta": 3.0}}})
    again = build(None, config=config, router=changed.router, state=tmp_path)
    router = again.learner.router
    assert isinstance(router, Tanbr)
    assert router.config.default.beta == 3.0
    assert (again.state().slot, router.known.posterior.visits.sum()) == (slot, 1)
    again.stop()
    few = config.model_copy(update={"max_active": 2})
    for settings, said in (
        ({"config": few}, "max_active = 8, and cannot go on with 2"),
        ({"config": config, "monitor": MonitorConfig(plain=True)}, "plain = False, and cannot go on with True"),
    ):
        with pytest.raises(SettingsError, match=said):
            build(None, state=tmp_path, **settings)  # type: ignore[arg-type]
    adopted = build(None, config=few, monitor=MonitorConfig(plain=True), state=tmp_path, adopt=True)
    assert (adopted.learner.router.max_active, adopted.state().slot) == (2, slot + 1)  # type: ignore[attr-defined]
    assert adopted.learner.monitor.config.plain
    adopted.stop()
