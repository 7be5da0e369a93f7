from typing import Any

import pytest

from tanbr.errors import InputError
from tanbr.serve.manner import Manner


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"temperature": -0.1}, r"temperature must be 0\.\.2 \(got -0.1\)"),
        ({"temperature": 2.1}, r"temperature must be 0\.\.2 \(got 2.1\)"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 1.5}, r"top_p must be 0\.\.1 \(got 1.5\)"),
        ({"n": 0}, r"n must be at least 1 \(got 0\)"),
        ({"stop": tuple("abcde")}, "stop must be at most 4 strings"),
        ({"stop": ("a", "")}, "none of them empty"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Manner(**said)


def test_only_what_draws_is_not_greedy() -> None:
    assert Manner().greedy
    assert Manner(temperature=1e-9, top_p=0.5, seed=3).greedy
    assert Manner(temperature=1.0, top_p=0.0).greedy
    assert not Manner(temperature=0.1).greedy
