"""The practice thread: a real server tries blends on what clients have labelled, and nobody waits for it."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from serve.serving import TEXTS, Run, labelled, service, until
from tanbr.lab.tasks import tiny
from tanbr.router import Tanbr
from tanbr.router.config import RouterConfig

TASKS = ("sentiment", "similarity")
SPECS = [tiny.BY_NAME[name] for name in TASKS]


def router() -> Tanbr:
    return Tanbr(8, 8, config=RouterConfig().of_requests(()))


def test_a_server_without_a_card_learns_by_practice_which_expert_a_task_needs_and_keeps_it(
    run: Run, tmp_path: Path
) -> None:
    live = run(router=router(), practice=1.0, answers="posterior")
    labelled(live, SPECS, 40)
    labelled(live, SPECS, 40)
    names = [task.name for task in tiny.TASKS]

    def found() -> bool:
        own = live.learner.router.own_experts  # type: ignore[attr-defined]
        return [int(own[names.index(task)]) for task in TASKS] == [names.index(task) for task in TASKS]

    until(found, 240)
    practice = live.learner.practice
    assert practice is not None
    assert Counter(one.task for one in practice.rows) == {names.index(task): 80 for task in TASKS}
    live.end_slot()
    assert live.stop()
    again = service(tmp_path, tmp_path, router=router(), practice=1.0, answers="posterior")
    try:
        own = again.learner.router.own_experts  # type: ignore[attr-defined]
        assert [int(own[names.index(task)]) for task in TASKS] == [names.index(task) for task in TASKS]
        assert again.learner.practice is not None
        assert again.learner.practice.rows == ()  # texts are never on disk
    finally:
        again.stop()


def test_practice_stays_away_while_requests_wait_and_ends_with_the_server(run: Run) -> None:
    live = run(router=router(), practice=1.0)
    assert live.practising is not None
    live.practising._busy = lambda: True
    labelled(live, SPECS, 40)
    assert live.learner.practice is not None
    assert live.stop()  # in the middle of an exercise
    assert live.learner.practice.done == 0


def test_practice_that_fails_ends_with_an_alarm_and_what_answers_goes_on(run: Run) -> None:
    live = run(router=router(), practice=1.0)
    assert live.practising is not None

    def broken(_: object) -> None:
        raise OSError("the checkpoint is gone")

    live.practising.answer = broken  # type: ignore[assignment, method-assign]
    labelled(live, SPECS, 40)
    until(lambda: any("practice has ended: OSError" in one.text for one in live.state().alarms))
    assert len(live.submit(TEXTS[:1]).result(30).request_ids) == 1


@pytest.mark.parametrize("settings", [{"practice": 0}, {"explore": "never", "practice": 1.0}])
def test_nothing_is_tried_where_it_is_off_or_nothing_may_be_chosen(run: Run, settings: dict[str, object]) -> None:
    live = run(router=router(), **settings)
    labelled(live, SPECS, 40)
    live.end_slot()
    assert live.learner.practice is None or live.learner.practice.done == 0
    np.testing.assert_array_equal(live.state().blend, np.full(8, 1 / 8))
