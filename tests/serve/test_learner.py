"""What the learner must do whatever happens: each test is a defect that was found."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.serving import ROWS, TEXTS, K, Ledger, V, answer, service, until
from tanbr.errors import StateError
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.serve.engine import Engine
from tanbr.serve.records import Feedback, Phase, Reason, ServiceError
from tanbr.serve.service import Service

OWN = tuple(range(V))  # of the embedded model, the expert of each task


@pytest.fixture
def live(tmp_path: Path, taught: Path) -> Any:
    running = service(tmp_path, taught, router=Ledger())
    running.start()
    yield running
    running.stop()


def told(live: Service) -> float:
    router: Any = live.learner.router
    return float(router.told)


# --- without rewards nothing is explored ------------------------------------------------------------------------------


def test_without_feedback_the_start_blend_stays_and_answers_as_the_even_one_does(
    tmp_path: Path, taught: Path, moe: Moe
) -> None:
    live = service(tmp_path, taught, explore="careful")
    live.start()
    even = np.full(K, 1 / K)
    expected = Engine(moe, blend=even).logits(TEXTS[:8])
    for _ in range(6):
        np.testing.assert_array_equal(live.state().blend, even)
        np.testing.assert_allclose(live.submit(TEXTS[:8]).result(30).logits, expected, atol=1e-4)
        live.end_slot()
    assert live.state().phase is Phase.WAITING
    assert live.state().why is None
    assert {slot.reason for slot in live.slots()} == {Reason.START}
    assert live.state().merge_version == 1  # nothing was merged again
    live.stop()


def test_a_proportional_start_blend_follows_the_mix(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught, explore="careful", own_experts=OWN)
    live.start()
    sentiment = [row.text for row in tiny.generate("sentiment", 32, seed=5, split="test")]
    for _ in range(3):
        live.submit(sentiment).result(30)
        live.end_slot()
    now = live.state()
    np.testing.assert_allclose(now.blend, now.task_mix, atol=0.05)
    assert now.blend.argmax() == 6
    live.stop()


def test_once_rewards_come_the_router_chooses_and_when_they_stop_the_best_known_blend_is_served(
    tmp_path: Path, taught: Path
) -> None:
    live = service(tmp_path, taught, explore="careful", patience=2, router=Ledger(), rewards={"settle_slots": 0})
    live.start()
    assert live.state().phase is Phase.WAITING
    even = live.state()

    def rewarded_slot(reward: float) -> None:
        for task in tiny.TASKS:  # of every task, so that the blend can be judged for any mix
            answer(live, 4, task=task.name, reward=reward)
        live.end_slot()

    rewarded_slot(0.9)
    assert told(live) == 4 * V  # the start blend's rewards have reached the router
    assert live.state().phase is Phase.LEARNING
    assert live.slots(1)[0].reason is Reason.CHOSEN
    assert live.state().why is not None
    rewarded_slot(0.4)
    reasons = []
    for _ in range(4):  # nobody says anything any more
        live.submit(TEXTS[:4]).result(30)
        live.end_slot()
        reasons.append(live.slots(1)[0].reason)
    assert reasons == [Reason.CHOSEN, Reason.CHOSEN, Reason.BEST, Reason.BEST]
    assert live.state().phase is Phase.WAITING
    assert live.state().merge_version == even.merge_version
    live.stop()


def test_never_serves_the_start_blend_whatever_comes(tmp_path: Path, taught: Path) -> None:
    given = np.eye(K)[2]
    live = service(tmp_path, taught, explore="never", blend=tuple(given), rewards={"settle_slots": 0})
    live.start()
    for _ in range(3):
        answer(live, 8, reward=0.1)
        live.end_slot()
        np.testing.assert_array_equal(live.state().blend, given)
    assert live.state().phase is Phase.FIXED
    live.stop()


# --- feedback ---------------------------------------------------------------------------------------------------------


def test_what_was_answered_can_be_fed_back_at_once(live: Service) -> None:
    accepted = 0
    for start in range(300):
        row = ROWS[start % len(ROWS)]
        spec = tiny.BY_NAME[row.task]
        (key,) = live.submit([row.text]).result(30).request_ids
        label = row.target if spec.graded else spec.labels[int(row.target)]
        accepted += live.feedback([Feedback(key, task=row.task, label=label)]).accepted
    assert accepted == 300


@pytest.mark.parametrize("how", ["pin", "rollback", "guard"])
def test_late_feedback_is_told_whatever_operators_and_the_guard_do(live: Service, how: str) -> None:
    late = live.submit(TEXTS[:32]).result(30).request_ids
    for _ in range(3):
        live.end_slot()  # the slot that answered is told
    assert told(live) == 0
    receipt = live.feedback([Feedback(i, reward=1.0, task="sentiment") for i in late])
    assert receipt.accepted == 32
    if how == "pin":
        live.pin(np.eye(K)[1])
    elif how == "rollback":
        live.rollback()
    else:
        version = live.state().merge_version
        live.learner.guard.opened((), keep=20)
        live.call(lambda operator: operator.dismiss(version, "a test says so"))
    counted = live.learner.config.guard.least_count if how == "rollback" else 0  # the zeros of a worthless blend
    assert told(live) == 32 + counted
    live.end_slot()
    live.end_slot()
    assert told(live) == 32 + counted  # and once


def test_a_worthless_rollback_reaches_the_router_where_feedback_is_off(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught, router=Ledger(), rewards={"feedback": 0.0, "labels": 0.0, "shadow": 0.0})
    live.start()
    live.end_slot()
    live.rollback()
    assert told(live) == live.learner.config.guard.least_count
    live.stop()


def test_labels_teach_the_monitor_what_a_task_looks_like(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught, router=Ledger())
    live.start()
    texts = [f"zorp quux blip {n} flarn wibble" for n in range(40)]

    def share() -> float:
        live.submit(texts).result(30)
        live.end_slot()
        seen = live.slots(2)[1].estimate
        assert seen is not None
        return float(seen[6])

    before = share()
    for _ in range(4):
        ids = live.submit(texts).result(30).request_ids
        live.feedback([Feedback(i, task="sentiment", label="positive") for i in ids])
        live.end_slot()
    assert share() > max(0.8, before + 0.1)
    live.stop()
    again = service(tmp_path, taught, router=Ledger())  # it was saved with the monitor
    assert again.learner.monitor.observe(texts[:1])[0, 6] > 0.8
    again.stop()


def test_feedback_is_refused_when_the_state_is_deleted_under_the_server(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path / "state", taught, router=Ledger())
    live.start()
    ids = live.submit(TEXTS[:2]).result(30).request_ids
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(ServiceError, match="nothing was taken in"):
        live.feedback([Feedback(i, reward=1.0) for i in ids])
    assert len(live.submit(TEXTS[:2]).result(30).request_ids) == 2  # answers go on
    live.stop()


def test_a_state_that_was_deleted_under_the_server_is_not_made_anew_in_parts(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path / "state", taught, router=Ledger())
    live.start()
    answer(live, 4)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(ServiceError):
        live.end_slot()
    assert not live.stop()  # what was learned is not saved, and that is said
    assert not (tmp_path / "state").exists()


def test_rewards_of_texts_unlike_any_task_are_left_out(tmp_path: Path, taught: Path) -> None:
    live = service(tmp_path, taught, router=Ledger(), rewards={"settle_slots": 0})
    live.start()
    rubbish = [f"⊗⊘ {n}§§ ⟦qqqqzzzz⟧ xkcdvvv{n}" for n in range(20)]
    known = [row.text for row in tiny.generate("sentiment", 20, seed=9, split="test")]
    for texts, reward in ((rubbish, 0.0), (known, 1.0)):
        ids = live.submit(texts).result(30).request_ids
        assert live.feedback([Feedback(i, reward=reward) for i in ids]).accepted == 20
    live.end_slot()
    record = live.slots(2)[1]
    assert record.total_reward > 0.9  # half of the rewards were 0
    live.stop()


# --- one address among nine -------------------------------------------------------------------------------------------

HONEST = [f"honest {n}" for n in range(8)]


def say(live: Service, client: str, texts: Any, **said: Any) -> None:
    """Have a client ask and say something of every answer, and the learner read it and judge."""
    ids = live.submit(texts).result(30).request_ids
    assert live.feedback([Feedback(i, **said) for i in ids], client=client).accepted == len(ids)
    for _ in range(2):  # the second one is heard after the step that heard the first
        live.call(lambda operator: None)


def test_a_stranger_rolls_back_no_version_in_any_slot_and_moves_a_reward_by_its_share(
    tmp_path: Path, taught: Path
) -> None:
    live = service(tmp_path, taught, router=Ledger(), rewards={"settle_slots": 0})
    live.start()
    for slot in range(9):
        if slot:
            say(live, f"stranger {slot}", TEXTS, reward=0.0, task="sentiment")
        for n, client in enumerate(HONEST):
            say(live, client, TEXTS[8 * n : 8 * n + 8], reward=0.9, task="sentiment")
        live.end_slot()
    ended = live.slots()[1:]
    assert [view.reason for view in ended] == [Reason.CHOSEN] * 9  # nothing was rolled back
    assert min(view.reward[6] for view in ended) >= 0.8 * 0.9 - 1e-9
    for n, client in enumerate(HONEST):  # the guard sleeps no more for that
        say(live, client, TEXTS[8 * n : 8 * n + 8], reward=0.1, task="sentiment")
    assert live.slots()[0].reason is Reason.ROLLED_BACK
    live.stop()


def recognised(live: Service, rows: Any) -> float:
    """Share of texts whose task the monitor names."""
    seen = live.learner.monitor.snapshot().recognise([row.text for row in rows]).posteriors.argmax(axis=1)
    return float(np.mean([tiny.TASKS[best].name == row.task for best, row in zip(seen, rows, strict=True)]))


def label_of(task: str) -> Any:
    spec = tiny.BY_NAME[task]
    return spec.scale[0] if spec.graded else spec.labels[0]


@pytest.mark.parametrize("honest", [8, 0])
def test_labels_that_lie_teach_the_monitor_nothing(tmp_path: Path, taught: Path, honest: int) -> None:
    live = service(tmp_path, taught, router=Ledger())
    live.start()
    fresh = [row for task in tiny.TASKS for row in tiny.generate(task.name, 50, seed=99, split="test")]
    before = recognised(live, fresh)
    names = [task.name for task in tiny.TASKS]
    for slot in range(6):
        rows = [row for name in names for row in tiny.generate(name, 32, seed=slot, split="test")]  # 256 of them
        ids = live.submit([row.text for row in rows]).result(30).request_ids
        wrong = [names[(names.index(row.task) + 1) % V] for row in rows]
        lies = [Feedback(i, task=task, label=label_of(task)) for i, task in zip(ids, wrong, strict=True)]
        assert live.feedback(lies, client=f"liar {slot}").accepted == 256
        for client in HONEST[:honest]:
            say(live, client, [row.text for row in rows[:32]], task=rows[0].task, label=label_of(rows[0].task))
        live.end_slot()
    assert recognised(live, fresh) >= before - 0.01
    live.stop()


def test_a_new_look_of_a_task_is_learned_from_several_clients_or_from_one_that_leads(
    tmp_path: Path, taught: Path
) -> None:
    texts = [f"zorp quux blip {n} flarn wibble" for n in range(40)]

    def learned(name: str, clients: list[str]) -> bool:
        live = service(tmp_path / name, taught, router=Ledger(), rewards={"settle_slots": 0})
        live.start()
        for _ in range(5):
            for client in clients:
                say(live, client, texts, task="sentiment", label="positive")
            say(live, "liar", [f"{text} snarf" for text in texts], task="paraphrase", label=label_of("paraphrase"))
            live.end_slot()
        posteriors = live.learner.monitor.observe([texts[0], f"{texts[0]} snarf"])
        live.stop()
        assert posteriors[1, 2] < 0.5  # nobody else says so
        return bool(posteriors[0, 6] > 0.8)

    assert learned("several", HONEST[:3])
    assert learned("alone", ["app"] * 2)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_turn_that_fails_keeps_the_mix_of_its_slot(live: Service) -> None:
    sentiment, duplicates = (
        [row.text for row in tiny.generate(name, 64, seed=5, split="test")] for name in ("sentiment", "duplicates")
    )
    live.submit(sentiment).result(30)
    transaction = live.store.transaction

    def full(**meta: Any) -> Any:
        if "router" in meta:
            raise ServiceError("the disk is full")
        return transaction(**meta)

    live.store.transaction = full  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="goes on"):
        live.end_slot()
    live.store.transaction = transaction  # type: ignore[method-assign]
    live.submit(duplicates[:2]).result(30)
    live.end_slot()
    estimate = live.slots(2)[1].estimate
    assert estimate is not None
    assert estimate[6] > 0.8


def test_the_guard_remembers_over_a_restart_what_it_refused(tmp_path: Path, taught: Path) -> None:
    probes = [row for task in tiny.TASKS for row in tiny.generate(task.name, 8, seed=3_000)]

    class Stubborn(Ledger):
        """Wants an expert that is no good for all, again and again."""

        def ask(self, task_mix: Any) -> Any:
            decision = super().ask(task_mix)
            blend = np.full(K, 1 / K) if decision.id == 0 else np.eye(K)[6]
            return type(decision)(decision.id, decision.task_mix, blend)

    def refused(live: Service) -> bool:
        live.submit(TEXTS).result(30)  # of all tasks
        live.end_slot()
        return live.slots(1)[0].note.startswith("refused")

    for _ in range(2):
        live = service(tmp_path, taught, router=Stubborn(), probes=probes, guard={"tries": 1})
        live.start()
        assert refused(live)
        live.stop()


def test_a_bad_state_is_one_sentence(tmp_path: Path, taught: Path) -> None:
    service(tmp_path / "state", taught, router=Ledger()).stop()
    for number, (statement, values) in enumerate(
        [
            ("UPDATE models SET blend = '[1]'", ()),
            ("DELETE FROM models", ()),
            ("DROP TABLE models", ()),
            ("UPDATE slots SET mix = '{'", ()),
            ("UPDATE slots SET reason = 'boredom'", ()),
            ("UPDATE meta SET value = ? WHERE key = 'router'", (None,)),
            ("UPDATE meta SET value = '../x' WHERE key = 'monitor'", ()),
            ("UPDATE meta SET value = 'x' WHERE key = 'mark'", ()),
            ("UPDATE meta SET value = '[' WHERE key = 'made_for'", ()),
            ("UPDATE meta SET value = 99 WHERE key = 'version'", ()),
            ("UPDATE meta SET value = '[[3]]' WHERE key = 'epochs'", ()),
            ("UPDATE meta SET value = 3 WHERE key = 'key'", ()),
            ("DROP TABLE slots", ()),
        ]
    ):
        folder = shutil.copytree(tmp_path / "state", tmp_path / str(number))
        with sqlite3.connect(folder / "store.sqlite3") as connection:
            connection.execute(statement, values)
        connection.close()
        with pytest.raises((StateError, ServiceError)):
            service(folder, taught, router=Ledger())


def test_the_state_is_one_picture(live: Service) -> None:
    now = live.state()
    assert now.phase is Phase.LEARNING
    live.pin(np.eye(K)[3])
    pinned = live.state()
    assert (pinned.phase, pinned.pinned, pinned.why) == (Phase.PINNED, True, None)
    assert pinned.blend[3] == 1
    live.unpin()
    assert live.state().phase is Phase.LEARNING
    assert json.loads(json.dumps(live.state().phase)) == "learning"
    until(lambda: live.faults() == ())
