import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.running import tanbr
from tanbr.cli import app
from tanbr.cli.display import fitted
from tanbr.cli.simulating import NAMES
from tanbr.lab.methods import KINDS


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


def test_the_help_names_every_method_and_what_clients_send_back_is_an_option(tmp_path: Path) -> None:
    assert NAMES.split(", ") == list(KINDS)
    asked = ["simulate", "--slots", "2", "--requests", "8", "--methods", "random", "--rewards", "rewards"]
    done = CliRunner().invoke(app, [*asked, "--card", "none", "--out", f"{tmp_path}/o"], catch_exceptions=False)
    assert done.exit_code == 0
    facts = json.loads((tmp_path / "o/runs/seed0-random.json").read_text())["facts"]
    assert (facts["rewards"], facts["card"]) == ("rewards", "none")


def test_the_demo_runs_and_says_where_its_report_is(tmp_path: Path) -> None:
    done = tanbr("demo", "--slots", "20", "--requests", "8", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tanbr above the best fixed blend" in done.stdout
    assert {file.name for file in (tmp_path / "here").iterdir()} == {"report.html", "demo.json"}


NARROW = ["method", "acceptability", "sentiment", "paraphrase", "similarity", "mean"]
WORDY = ["method", "last 100 slots", "all slots", "regret per slot", "… last 100", "merges"]
ROWS = [["tanbr+regression+survey", *["71.4 ± 1.2"] * 5], ["[average]", *["60.0 ± 0.1"] * 5]]


@pytest.mark.parametrize(
    ("header", "width", "tables"),
    [
        (NARROW, 60, None),
        (NARROW, 200, 1),
        (WORDY, 100, 1),  # headings go over two lines before a table is split
    ],
)
def test_no_word_is_cut_however_narrow_the_terminal(header: list[str], width: int, tables: int | None) -> None:
    parts = fitted("t", header, ROWS, subject=ROWS[0][0], width=width)
    console = Console(file=io.StringIO(), width=width)
    console.print(*parts, sep="\n")
    page = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in page for heading in header for word in heading.split())
    assert all(page.count(cell) >= row.count(cell) for row in ROWS for cell in row)
    assert max(map(len, page.splitlines())) <= width
    assert len(parts) == tables if tables else len(parts) > 1
    assert all(part.columns[0].header == "method" for part in parts)
