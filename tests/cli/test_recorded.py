import pytest

from cli.running import mistake


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "nowhere"), "nowhere holds no log of a server"),
        (("replay", "nowhere", "--routers", "oracle"), "unknown router 'oracle'; known: tanbr"),
        (("backup", "nowhere", "copy"), "nowhere holds no state of a server"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, arguments, says, monkeypatch, capsys) -> None:
    assert says in mistake(monkeypatch, capsys, tmp_path, *arguments)
