import pytest

from tanbr.serve import relay
from tanbr.serve.relay import Conversations


def test_a_conversation_has_its_version_until_it_is_idle_and_the_oldest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    known = Conversations(60.0, clock=lambda: now)
    known.note("a", 3)
    now = 59.0
    assert known.version("a") == 3
    known.note("a", 3)
    now = 118.0
    assert (known.version("a"), known.version("b")) == (3, None)
    now = 119.0
    assert known.version("a") is None
    monkeypatch.setattr(relay, "REMEMBERED", 2)
    for number, key in enumerate("abc"):
        known.note(key, number)
    assert [known.version(key) for key in "abc"] == [None, 1, 2]
