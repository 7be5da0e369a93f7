import io
import json
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from cli.running import tanbr
from serve.text_model import write
from tanbr.cli import app
from tanbr.cli.display import fitted
from tanbr.errors import StateError
from tanbr.router.groups import Groups


def test_simulate_leaves_figures_tables_and_pictures(tmp_path: Path) -> None:
    done = tanbr(
        "simulate", "--slots", "4", "--requests", "8", "--methods", "average,tags", "--record", "t.jsonl", "--out", "o",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (tmp_path / "o").iterdir()} == {
        "runs", "simulate.json", "results.md", "reward.png", "regret.png", "mix.png", "blend.png",
    }  # fmt: skip
    figures = json.loads((tmp_path / "o" / "simulate.json").read_text())
    assert figures["command"].startswith("tanbr simulate --slots 4")
    assert figures["methods"]["tags"]["reward"]["mean"] > figures["methods"]["average"]["reward"]["mean"]
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 32


def test_a_t5_that_writes_its_answers_takes_part(tmp_path: Path) -> None:
    write("t5_moe", tmp_path / "t5")
    done = tanbr("simulate", "t5", "--slots", "2", "--requests", "8", "--methods", "tanbr,average", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out/simulate/simulate.json").read_text())
    assert set(figures["methods"]) == {"tanbr", "average"}


def test_the_demo_runs_and_says_where_its_report_is(tmp_path: Path) -> None:
    done = tanbr("demo", "--slots", "20", "--requests", "8", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tanbr above the best fixed blend" in done.stdout
    assert {file.name for file in (tmp_path / "here").iterdir()} == {"report.html", "demo.json"}


def test_a_router_over_groups_is_compared_with_the_plain_one(tmp_path: Path) -> None:
    Groups.of([[0, 1, 2], [3, 4], [5, 6, 7]]).save(tmp_path / "groups.json")
    options = ["--groups", str(tmp_path / "groups.json"), "--methods", "grouped,grouped@2,tanbr", "--slots", "3"]
    result = CliRunner().invoke(app, ["simulate", *options, "--requests", "8", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    runs = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out" / "runs").iterdir()}
    assert set(runs) == {"seed0-grouped", "seed0-grouped@2", "seed0-tanbr"}
    assert runs["seed0-grouped"]["facts"]["groups"] == Groups.load(tmp_path / "groups.json").digest
    assert "groups" not in runs["seed0-tanbr"]["facts"]
    for blend in runs["seed0-grouped"]["slots"]["blend"][2:]:  # the start blend is served until rewards are told
        assert blend[0] == blend[1] == blend[2]
        assert blend[3] == blend[4]
    without = CliRunner().invoke(app, ["simulate", *options[2:], "--out", str(tmp_path / "other")]).exception
    assert "pass --groups" in str(without)
    Groups.of([[0, 1, 2, 3], [4, 5, 6, 7]]).save(tmp_path / "groups.json")
    other = CliRunner().invoke(app, ["simulate", *options, "--requests", "8", "--out", str(tmp_path / "out")])
    assert isinstance(other.exception, StateError)


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
