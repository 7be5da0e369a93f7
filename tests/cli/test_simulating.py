import json
from pathlib import Path

import pytest

from cli.running import Mistake, tanbr
from serve.text_model import write


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--methods", "tambr"), "did you mean 'tanbr'"),
        (("--traffic", "chaotic"), "unknown kind of traffic 'chaotic'"),
        (("--traffic", "trace:none.jsonl"), "cannot read the trace none.jsonl"),
        (("--seeds", "one"), "--seeds must be whole numbers"),
        (("--models", "0"), "--models must be whole numbers from 1"),
        (("--data", "none"), "no GLUE folder at none"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(mistake: Mistake, arguments: tuple[str, ...], says: str) -> None:
    assert says in mistake("simulate", *arguments)
