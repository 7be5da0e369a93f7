from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.serving import monitor
from tanbr.lab.tasks import tiny
from tanbr.monitor import Monitor
from tanbr.monitor.recogniser import Recogniser, Recognition
from tanbr.serve.answer_log import CHARACTERS, RECENT, AnswerLog
from tanbr.serve.panel import Answers
from tanbr.serve.store import Store

V = 2


@pytest.fixture
def log(tmp_path: Path) -> AnswerLog:
    return AnswerLog(Store(tmp_path), keep_logits=True, tasks=V)


def batch(number: int, texts: tuple[Any, ...], *, slot: int = 3, place: int = 0) -> Answers:
    ids = tuple(
        slot.to_bytes(4, "big") + bytes([place]) + (1000 * number + i).to_bytes(7, "big") for i in range(len(texts))
    )
    logits = np.full((len(texts), 2), float(number))
    return Answers(1, slot, ids, texts, logits, place=place)


@pytest.mark.parametrize(
    ("batches", "texts"),
    [(RECENT // 500 + 2, ("a",) * 500), (20, ("a" * (CHARACTERS // 8), ("b" * (CHARACTERS // 16), "c")))],
    ids=["many", "long"],
)
def test_memory_is_bounded_by_the_number_of_texts_and_by_their_length(
    log: AnswerLog, batches: int, texts: tuple[Any, ...]
) -> None:
    said = [batch(number, texts) for number in range(batches)]
    for one in said:
        log.put(one)
    held = [one for one in said if log.texts_of(one.ids)]
    assert held == said[-len(held) :]  # the newest
    assert 0 < len(held) < batches
    assert sum(len(one.ids) for one in held) <= RECENT
    assert sum(len("".join(text)) for one in held for text in one.texts) <= CHARACTERS


def stored(log: AnswerLog) -> int:
    return log._store._number("SELECT COUNT(*) FROM requests")


def test_a_batch_that_cannot_be_read_holds_up_no_other(log: AnswerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    untaught, recognise = Monitor(("first", "second")), Recogniser.recognise

    def failing(recogniser: Recogniser, texts: Any) -> Recognition:
        if "bad" in texts:
            raise MemoryError("not now")
        return recognise(recogniser, texts)

    for number, text in enumerate(("good", "bad", "good")):
        log.put(batch(number, (text,)))
    with monkeypatch.context() as patched:
        patched.setattr(Recogniser, "recognise", failing)
        assert isinstance(log.read(untaught), MemoryError)
    assert log.read(untaught) is None
    assert stored(log) == untaught.close_slot().requests == 2


@pytest.mark.parametrize("tasks", [[5], [5, 6]])
def test_the_tasks_that_clients_name_are_in_the_mix(tmp_path: Path, taught: Path, tasks: list[int]) -> None:
    known = monitor(taught)
    all_of = len(known.tasks)
    log = AnswerLog(Store(tmp_path), keep_logits=True, tasks=all_of)
    texts = tuple(row.text for row in tiny.generate(known.tasks[0], 20, seed=3, split="test"))
    named = np.tile(np.isin(np.arange(all_of), tasks).astype(float), (len(texts), 1))
    log.put(replace(batch(1, texts), named=named))
    log.read(known)
    assert known.close_slot().estimate[tasks].sum() > 0.99
