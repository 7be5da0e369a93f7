import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.running import tanbr
from serve.text_model import write
from tanbr.cli import app
from tanbr.cli.display import fitted


def test_simulate_leaves_figures_tables_and_pictures(tmp_path: Path) -> None:
    asked = ("--slots", "4", "--requests", "8", "--methods", "average,tags", "--out", "o")
    done = tanbr("simulate", *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (tmp_path / "o").iterdir()} == {
        "runs", "simulate.json", "results.md", "reward.png", "regret.png", "mix.png", "blend.png",
    }  # fmt: skip
    figures = json.loads((tmp_path / "o" / "simulate.json").read_text())
    assert figures["command"].startswith("tanbr simulate --slots 4")
    assert figures["methods"]["tags"]["reward"]["mean"] > figures["methods"]["average"]["reward"]["mean"]


def test_a_t5_that_writes_its_answers_takes_part(tmp_path: Path) -> None:
    write("t5_moe", tmp_path / "t5")
    asked = ["simulate", f"{tmp_path}/t5", "--slots", "2", "--requests", "8", "--methods", "tanbr,average"]
    done = CliRunner().invoke(app, [*asked, "--out", f"{tmp_path}/out"], catch_exceptions=False)
    assert done.exit_code == 0
    figures = json.loads((tmp_path / "out/simulate.json").read_text())
    assert set(figures["methods"]) == {"tanbr", "average"}


def test_the_demo_runs_and_says_where_its_report_is(tmp_path: Path) -> None:
    done = tanbr("demo", "--slots", "20", "--requests", "8", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tanbr above the best fixed blend" in done.stdout
    assert {file.name for file in (tmp_path / "here").iterdir()} == {"report.html", "demo.json"}


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
WORDY = ["method", "last 100 slots", "all slots", "regret per slot", "… last 100", "merges"]
WORDY_ROWS = [["best per slot", "0.652 ± 0.008", "0.652 ± 0.008", "0.000", "0.000", "17"]]


@pytest.mark.parametrize(
    ("header", "rows", "width", "tables"),
    [
        (HEADER, ROWS, 60, None),
        (HEADER, ROWS, 80, None),
        (HEADER, ROWS, 120, None),
        (HEADER, ROWS, 200, 1),
        (WORDY, WORDY_ROWS, 80, 1),  # headings go over two lines before a table is split
    ],
)
def test_no_word_is_cut_however_narrow_the_terminal(
    header: list[str], rows: list[list[str]], width: int, tables: int | None
) -> None:
    parts = fitted("t", header, rows, subject=rows[0][0], width=width)
    console = Console(file=io.StringIO(), width=width)
    console.print(*parts, sep="\n")
    page = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in page for heading in header for word in heading.split())
    assert all(page.count(cell) >= row.count(cell) for row in rows for cell in row)
    assert max(map(len, page.splitlines())) <= width
    assert len(parts) == tables if tables else len(parts) > 1
    assert all(part.columns[0].header == "method" for part in parts)
