import io

from rich.console import Console

from tanbr.cli.display import fitted

HEADER = [
    "method",
    "acceptability",
    "sentiment",
    "paraphrase",
    "similarity",
    "duplicates",
    "inference",
    "answers",
    "mean",
]
ROWS = [["tanbr+regression+survey", *["71.4 ± 1.2"] * 8], ["[average]", *["60.0 ± 0.1"] * 8]]


def shown(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(*fitted("what it is", HEADER, ROWS, subject="tanbr+regression+survey", width=width), sep="\n")
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_no_word_is_cut_however_narrow_the_terminal() -> None:
    for width in (60, 80, 120, 200):
        page = shown(width)
        assert "…" not in page
        assert all(word in page for word in (*HEADER, "tanbr+regression+survey", "[average]"))
        assert page.count("71.4 ± 1.2") == 8
        assert max(map(len, page.splitlines())) <= width


def test_a_heading_of_several_words_goes_over_two_lines_before_a_table_is_split() -> None:
    header = ["method", "last 100 slots", "all slots", "regret per slot", "… last 100", "merges"]
    rows = [["best per slot", "0.652 ± 0.008", "0.652 ± 0.008", "0.000", "0.000", "17"]]
    console = Console(file=io.StringIO(), width=80)
    [table] = fitted("reward", header, rows, width=80)
    console.print(table)
    page = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, page.splitlines())) <= 80
    assert all(cell in page for cell in rows[0])
    assert "merges" in page


def test_a_table_that_fits_stays_one() -> None:
    assert len(fitted("t", HEADER, ROWS, width=200)) == 1
    parts = fitted("t", HEADER, ROWS, width=80)
    assert len(parts) > 1
    assert all(part.columns[0].header == "method" for part in parts)
    assert [part.title for part in parts] == ["t"] + [None] * (len(parts) - 1)
