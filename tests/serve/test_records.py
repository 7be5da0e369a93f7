import inspect

from tanbr.serve import records
from tanbr.serve.records import Observer, Overloaded, Receipt, Silent


def test_a_receipt_counts_its_outcomes() -> None:
    receipt = Receipt(("accepted", "repeated", "accepted", "unknown"))
    assert (receipt.accepted, receipt.repeated, receipt.unknown) == (2, 1, 1)


def test_an_overloaded_service_says_when_to_come_back() -> None:
    error = Overloaded(1.25)
    assert error.retry_after == 1.25
    assert "try again in 1.2 seconds" in str(error)


def test_the_silent_observer_hears_everything() -> None:
    asked = {name for name, _ in inspect.getmembers(Observer, inspect.isfunction) if not name.startswith("_")}
    assert asked == {name for name, _ in inspect.getmembers(Silent, inspect.isfunction) if not name.startswith("_")}


def test_what_is_public_is_there() -> None:
    assert all(hasattr(records, name) for name in records.__all__)
