import numpy as np
import pytest
from tanbr.router.ledger import Ledger

from tanbr.router import ledger

ONE, TWO = np.eye(2)
MIX = np.array([0.75, 0.25])


def worth(*, left, right):
    """What is expected of a blend of two: by the first expert's weight for the first task, else for the second."""
    return lambda blends: blends @ np.array([[left, 0.0], [0.0, right]])


def test_a_slot_on_the_baseline_neither_earns_nor_costs():
    book = Ledger(2, 2)
    book.tell([(MIX, ONE, ONE)], worth(left=0.5, right=1.0))
    assert (book.slots, book.off, book.earned) == (1, 0, 0.375)
    assert book.gain(worth(left=0.9, right=0.1)) == 0.0


def test_a_slot_off_the_baseline_is_valued_anew_when_more_is_known():
    book = Ledger(2, 2)
    book.tell([(MIX, TWO, ONE)], worth(left=0.5, right=1.0))
    assert book.gain(worth(left=0.5, right=1.0)) == 0.25 - 0.375
    assert book.gain(worth(left=0.5, right=0.5)) == 0.125 - 0.375


def test_what_is_long_ago_stays_as_it_was_valued(monkeypatch):
    monkeypatch.setattr(ledger, "KEPT", 1)
    book = Ledger(2, 2)
    for _ in range(2):
        book.tell([(MIX, TWO, ONE)], worth(left=0.5, right=1.0))
    assert book.gain(worth(left=0.5, right=0.5)) == (0.25 - 0.375) + (0.125 - 0.375)
    assert book.off == 2


def test_a_panel_is_one_slot_with_an_entry_for_each_pair_of_models():
    book, now = Ledger(2, 2), worth(left=0.5, right=1.0)
    first, second = MIX * [1, 0], MIX * [0, 1]
    book.tell([(first, ONE, ONE), (second, TWO, ONE)], now)
    assert (book.slots, book.off) == (1, 1)
    assert book.earned == 0.375  # the second task earns nothing from the first expert
    assert book.gain(now) == 0.25


def test_a_change_leaves_the_past_as_it_was_valued():
    book = Ledger(2, 2)
    book.tell([(MIX, TWO, ONE)], worth(left=0.5, right=1.0))
    book.settle(worth(left=0.5, right=1.0))
    assert book.gain(worth(left=0.0, right=0.0)) == 0.25 - 0.375


def test_swaps_are_counted():
    book = Ledger(2, 2)
    for blend in (ONE, ONE, TWO, ONE):
        book.serve(blend[None])
    assert book.swaps == 2


@pytest.mark.parametrize("slots", [0, 3])
def test_it_goes_on_from_its_state(slots):
    book, other = Ledger(2, 2), Ledger(2, 2)
    for _ in range(slots):
        book.serve(TWO[None])
        book.tell([(MIX, TWO, ONE)], worth(left=0.5, right=1.0))
    other.restore(book.state)
    for one in (book, other):
        one.serve(ONE[None])
        one.tell([(MIX, ONE, ONE)], worth(left=0.5, right=1.0))
    now = worth(left=0.25, right=1.0)
    assert book.gain(now) == other.gain(now)
    assert (book.slots, book.off, book.swaps, book.earned) == (other.slots, other.off, other.swaps, other.earned)
