import re

from hypothesis import given
from hypothesis import strategies as st

from tanbr.serve.stop_strings import StopStrings

TEXT = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4)


def before(text: str, stops: list[str]) -> tuple[str, bool]:
    """What stands before the string that is the first to be complete, looked for letter by letter."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


@given(TEXT, STOPS, st.data())
def test_what_is_given_on_never_has_a_part_of_a_string_that_stops(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    filter_, told = StopStrings(stops), ""
    expected, stopped = before(text, stops)
    for number, piece in enumerate(pieces):
        told += filter_.add(piece, last=number == len(pieces) - 1)
        assert expected.startswith(told)  # nothing was told that had to be taken back
    assert (told, filter_.found) == (expected, stopped)
    assert filter_.text == told


def test_only_what_may_be_a_beginning_is_kept_back() -> None:
    stops = StopStrings(["\n\nQ:", "END"])
    assert stops.add("one E") == "one "
    assert stops.add("x\n") == "Ex"
    assert stops.add("\nQ") == ""
    assert stops.add("!") == "\n\nQ!"
    assert stops.add(" EN") == " "
    assert stops.add("D and more") == ""
    assert stops.found
    assert stops.add("END") == ""
    assert re.fullmatch(r"one Ex\n\nQ! ", stops.text)


def test_without_strings_everything_is_given_on_at_once() -> None:
    stops = StopStrings(())
    assert stops.add("anything") == "anything"
    assert not stops.found
