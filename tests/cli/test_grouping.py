import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.running import Mistake
from tanbr.cli.grouping import app, read_texts
from tanbr.cli.merging import app as merging
from tanbr.cli.simulating import app as simulating
from tanbr.errors import ConfigError, DataError, StateError
from tanbr.moe import embedded
from tanbr.router.groups import Groups
from tanbr.serve.survey import Survey

MODEL = str(embedded.path())


def test_groups_by_weights_are_written_with_a_picture(tmp_path: Path) -> None:
    out, picture = tmp_path / "groups.json", tmp_path / "groups.png"
    result = CliRunner().invoke(app, [MODEL, "--into", "3", "--out", str(out), "--picture", str(picture)])
    assert result.exit_code == 0, result.output
    groups = Groups.load(out)
    assert (len(groups), groups.experts, groups.found_by) == (3, 8, "weights")
    assert json.loads(out.read_text())["experts"] == 8
    assert "within groups" in result.output
    assert picture.stat().st_size > 1000


def test_groups_by_reward_come_from_a_survey(tmp_path: Path) -> None:
    rewards = np.repeat([[0.2, 0.8], [0.8, 0.2]], 4, axis=0)
    Survey(np.eye(8), rewards, rewards, rows=30).save(tmp_path / "survey.json")
    arguments = [MODEL, "--by", "reward", "--survey", str(tmp_path / "survey.json"), "--into", "2"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "groups.json")])
    assert result.exit_code == 0, result.output
    assert Groups.load(tmp_path / "groups.json").members == ((0, 1, 2, 3), (4, 5, 6, 7))
    Survey(np.eye(8), rewards, rewards, model_sha256="0").save(tmp_path / "survey.json")
    assert isinstance(CliRunner().invoke(app, arguments).exception, DataError)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--into", "9"], "8 experts make 2 to 8 groups"),
        (["--into", "1"], "8 experts make 2 to 8 groups"),
        (["--by", "routing"], "needs --texts"),
        (["--by", "reward"], "needs --survey"),
        (["--survey", "missing.json"], "needs --survey"),
        (["--by", "reward", "--survey", "missing.json", "--into", "2"], "holds no survey"),
        (["--by", "routing", "--texts", "missing.txt", "--into", "2"], "cannot read the texts"),
    ],
)
def test_mistakes_are_one_sentence(mistake: Mistake, options: list[str], why: str) -> None:
    assert why in mistake("groups", MODEL, *options)


@pytest.mark.parametrize("content", ["{", '{"groups": [[0, 1], [1]]}', '{"groups": [[0], [1]]}'])
@pytest.mark.parametrize("command", ["serve", "simulate"])
def test_groups_that_do_not_fit_are_one_sentence(
    mistake: Mistake, command: str, content: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("groups") / "groups.json"
    file.write_text(content)
    options = ["--port", "0"] if command == "serve" else ["--methods", "grouped", "--slots", "1"]
    assert "groups.json" in mistake(command, "--groups", str(file), *options)


def test_texts_are_one_a_line(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("one\n\n  \ntwo words\n")
    assert read_texts(tmp_path / "texts.txt") == ["one", "two words"]


def test_inspect_mentions_groups_where_there_are_many_experts(qwen: Path) -> None:
    result = CliRunner().invoke(merging, ["inspect", str(qwen)])
    assert result.exit_code == 0, result.output
    assert "tanbr groups" in result.output


def test_a_router_over_groups_is_compared_with_the_plain_one(tmp_path: Path) -> None:
    Groups.of([[0, 1, 2], [3, 4], [5, 6, 7]]).save(tmp_path / "groups.json")
    options = ["--groups", str(tmp_path / "groups.json"), "--methods", "grouped,grouped@2,tanbr", "--slots", "3"]
    result = CliRunner().invoke(simulating, ["simulate", *options, "--requests", "8", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    runs = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out" / "runs").iterdir()}
    assert set(runs) == {"seed0-grouped", "seed0-grouped@2", "seed0-tanbr"}
    assert runs["seed0-grouped"]["facts"]["groups"] == Groups.load(tmp_path / "groups.json").digest
    assert "groups" not in runs["seed0-tanbr"]["facts"]
    for blend in runs["seed0-grouped"]["slots"]["blend"]:
        assert blend[0] == blend[1] == blend[2]
        assert blend[3] == blend[4]
    Groups.of([[0, 1, 2, 3], [4, 5, 6, 7]]).save(tmp_path / "groups.json")
    other = CliRunner().invoke(simulating, ["simulate", *options, "--requests", "8", "--out", str(tmp_path / "out")])
    assert isinstance(other.exception, StateError)


def test_a_router_over_groups_needs_them(tmp_path: Path) -> None:
    arguments = ["simulate", "--methods", "grouped", "--slots", "2", "--out", str(tmp_path / "out")]
    failed = CliRunner().invoke(simulating, arguments).exception
    assert isinstance(failed, ConfigError)
    assert "pass --groups" in str(failed)
