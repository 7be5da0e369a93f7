from typing import Any

import pytest

from tanbr.errors import InputError
from tanbr.serve.sampling import Manner


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


def test_every_answer_has_a_seed_of_its_own_that_other_prompts_do_not_change() -> None:
    asked = Manner(temperature=0.5, top_p=0.9, seed=4, n=3)
    alone, two = asked.samplings(1, chance=1), asked.samplings(2, chance=2)
    assert two == alone * 2
    assert len({one.seed for one in alone if one is not None}) == 3
    assert Manner(temperature=0.5, top_p=0.9, seed=4).samplings(1, chance=3) == alone[:1]
    assert {(one.temperature, one.top_p) for one in alone if one is not None} == {(0.5, 0.9)}
    chance = Manner(temperature=0.5, n=3).samplings(2, chance=1)
    assert len({one.seed for one in chance if one is not None}) == 6
    assert Manner(n=3).samplings(2, chance=1) == (None,) * 6
    huge = Manner(temperature=1.0, seed=10**30).samplings(1, chance=1)  # any number will do
    assert huge == Manner(temperature=1.0, seed=10**30).samplings(1, chance=2) != alone
