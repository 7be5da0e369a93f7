import pytest

from cli.running import Mistake


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "nowhere"), "nowhere holds no log of a server"),
        (("replay", "nowhere", "--routers", "oracle"), "unknown router 'oracle'; known: tanbr"),
        (("backup", "nowhere", "copy"), "nowhere holds no state of a server"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(mistake: Mistake, arguments, says) -> None:
    assert says in mistake(*arguments)
