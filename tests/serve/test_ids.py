import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.serve.ids import RequestIds, slot_of

IDS = RequestIds(b"k" * 32)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
@settings(max_examples=40)
def test_an_id_is_read_back_and_says_its_slot(slot: int, count: int) -> None:
    issued = IDS.issue(slot, count)
    assert len(set(issued)) == count
    assert [IDS.read(IDS.show(raw)) for raw in issued] == issued
    assert {slot_of(raw) for raw in issued} == {slot}


@given(st.text(max_size=40))
@settings(max_examples=100)
def test_whatever_a_client_makes_up_is_unknown(text: str) -> None:
    assert IDS.read(text) is None


def test_another_servers_ids_and_changed_ids_are_unknown() -> None:
    shown = IDS.show(IDS.issue(7, 1)[0])
    assert RequestIds(os.urandom(32)).read(shown) is None
    for place in range(32):
        other = "a" if shown[place] != "a" else "b"
        assert IDS.read(shown[:place] + other + shown[place + 1 :]) is None


def test_who_takes_over_from_another_issues_what_that_one_knows() -> None:
    key = os.urandom(32)
    learner = RequestIds(key, ((b"first", 0), (b"second", 3)))
    replica = RequestIds(key, ((b"first", 0),))
    (before,), (late,) = replica.issue(3, 1), replica.issue(4, 1)
    assert learner.read(replica.show(before)) == before  # answered while the learner was started again
    assert learner.read(replica.show(late)) is None  # of the old life, in a slot that began after it
    replica.take_over(learner)
    assert learner.read(replica.show(late)) == late
