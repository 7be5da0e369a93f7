from tanbr.fleet.outbox import ReportBox
from tanbr.serve.messages import Broken


def test_a_lot_is_sent_again_until_it_is_taken() -> None:
    box = ReportBox()
    assert box.lot() == (0, ())
    box.put(Broken(1, 0))
    number, lot = box.lot()
    box.put(Broken(2, 0))
    assert box.lot() == (number, lot) == (1, (Broken(1, 0),))
    box.taken(number - 1)  # of an older one: nothing is forgotten
    assert box.lot() == (number, lot)
    box.taken(number)
    assert box.lot() == (2, (Broken(2, 0),))


def test_what_nobody_takes_does_not_grow_for_ever() -> None:
    box = ReportBox(most=3)
    for version in range(10):
        box.put(Broken(version, 0))
    assert box.lot()[1] == tuple(Broken(version, 0) for version in (7, 8, 9))
    assert box.lost == 7
