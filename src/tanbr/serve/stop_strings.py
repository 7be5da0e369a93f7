"""Strings that end an answer. What might be the beginning of one is kept back until it is certain."""

from collections.abc import Sequence


class StopStrings:
    """Hears one answer's text piece by piece, and gives on what stands before the first of the strings."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""  # the end of what was heard, with which one of the strings may begin
        self._given: list[str] = []
        self.found = False

    @property
    def text(self) -> str:
        """All that was given on."""
        return "".join(self._given)

    def add(self, piece: str, *, last: bool = False) -> str:
        """Hear a piece, perhaps the last; what can be given on now."""
        if self.found:
            return ""
        heard = self._held + piece
        found = [(place + len(stop), place) for stop in self._stop if (place := heard.find(stop)) >= 0]
        self.found = bool(found)
        open_end = 0 if last else self._beginning(heard)
        certain = min(found)[1] if found else len(heard) - open_end  # the string that is complete first counts
        self._held = heard[certain:]
        self._given.append(heard[:certain])
        return heard[:certain]

    def _beginning(self, heard: str) -> int:
        """Length of the longest end of a text that is a beginning of one of the strings."""
        lengths = range(min(len(heard), max(map(len, self._stop), default=1) - 1), 0, -1)
        return next((n for n in lengths if any(stop.startswith(heard[-n:]) for stop in self._stop)), 0)
