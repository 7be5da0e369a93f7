from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tanbr.serve.answer_log import CHARACTERS, RECENT, AnswerLog
from tanbr.serve.config import ServeConfig
from tanbr.serve.messages import Answers
from tanbr.serve.store import Store

ENCODER: Any = None
V = 2


@pytest.fixture
def log(tmp_path: Path) -> AnswerLog:
    return AnswerLog(
        Store(tmp_path), config=ServeConfig(), encode=ENCODER, shadow=None, classes=2, keep_logits=True, tasks=V
    )


def batch(number: int, texts: tuple[Any, ...], *, slot: int = 3, place: int = 0) -> Answers:
    ids = tuple(
        slot.to_bytes(4, "big") + bytes([place]) + (1000 * number + i).to_bytes(7, "big") for i in range(len(texts))
    )
    logits = np.full((len(texts), 2), float(number))
    return Answers(1, slot, 0.0, ids, texts, logits, np.ones(len(texts)), None, place=place)


def test_what_was_answered_is_at_hand_at_once(log: AnswerLog) -> None:
    said = batch(1, ("a", ("b", "c")))
    assert log.put(said) == 2
    assert log.texts_of(said.ids) == {said.ids[0]: "a", said.ids[1]: ("b", "c")}
    assert {key: row.tolist() for key, row in log.logits_of(said.ids).items()} == {key: [1.0, 1.0] for key in said.ids}


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


def test_requests_are_counted_by_slot_and_model(log: AnswerLog) -> None:
    log.put(batch(1, ("a", "b"), place=0))
    assert log.put(batch(2, ("c",), place=1)) == 3
    assert log.uncounted() == {(3, 0): 2, (3, 1): 1}
    log.counted({(3, 0): 2})
    assert log.uncounted() == {(3, 1): 1}
    assert (log.held_by(3, 0), log.held_by(3, 1), log.held[3]) == (2, 1, 3)
    log.forget(6)
    assert log.uncounted() == {}
