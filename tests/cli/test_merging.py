import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tanbr.merge
from moe.tiny import build
from tanbr.cli import app
from tanbr.errors import DataError
from tanbr.moe import embedded
from tanbr.router.groups import Groups
from tanbr.serve.survey import Survey

MODEL = str(embedded.path())


def test_align_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    result = CliRunner().invoke(app, ["align", str(tmp_path / "moe"), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert tanbr.merge.open(tmp_path / "out").num_experts == 4


def test_inspect_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "moe"), "--out", str(tmp_path / "report")])
    assert result.exit_code == 0, result.output
    assert "do not merge" in result.output
    assert max(map(len, result.output.splitlines())) <= 80  # and nothing is cut to fit
    assert "…" not in result.output
    for name in ("site", "distance", "cosine", "in place", "match", "moved", "bert.encoder.layer.1"):
        assert name in result.output
    report = json.loads((tmp_path / "report" / "inspect.json").read_text())
    assert report["verdict"] == "do not merge"


def test_dense_models_become_an_moe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build("bert_moe").save_pretrained(tmp_path / "moe")
    for arguments in (
        "merge moe dense --blend even --force",
        "merge moe other --blend one-hot:1",
        "merge dense copies --mode moe --copies 3 --jitter 0.01",
        "merge dense again --mode moe --expert dense --expert other",
    ):
        done = CliRunner().invoke(app, arguments.split())
        assert done.exit_code == 0, (arguments, done.output, done.exception)
    assert tanbr.merge.open(tmp_path / "copies").num_experts == 3
    assert tanbr.merge.open(tmp_path / "again").num_experts == 2


def test_inspect_mentions_groups_where_there_are_many_experts(qwen: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(qwen)])
    assert result.exit_code == 0, result.output
    assert "--groups may help" in result.output


def test_groups_by_weights_are_written_with_a_picture(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", MODEL, "--groups", "3", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    groups = Groups.load(tmp_path / "groups.json")
    assert (len(groups), groups.experts, groups.found_by) == (3, 8, "weights")
    assert "within groups" in result.output
    assert (tmp_path / "groups.png").stat().st_size > 1000


def test_groups_by_reward_come_from_a_survey(tmp_path: Path) -> None:
    rewards = np.repeat([[0.2, 0.8], [0.8, 0.2]], 4, axis=0)
    Survey(np.eye(8), rewards, rewards, rows=30).save(tmp_path / "survey.json")
    arguments = ["inspect", MODEL, "--groups", "2", "--survey", str(tmp_path / "survey.json"), "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert Groups.load(tmp_path / "groups.json").members == ((0, 1, 2, 3), (4, 5, 6, 7))
    Survey(np.eye(8), rewards, rewards, model_sha256="0").save(tmp_path / "survey.json")
    assert isinstance(CliRunner().invoke(app, arguments).exception, DataError)


def test_groups_by_routing_come_from_texts_one_a_line(qwen: Path, tmp_path: Path, monkeypatch) -> None:
    seen = []

    def by_routing(moe, texts, **_):
        seen.extend(texts)
        raise DataError("seen enough")

    monkeypatch.setattr("tanbr.lab.grouping.by_routing", by_routing)
    (tmp_path / "texts.txt").write_text("one\n\n  \ntwo words\n")
    CliRunner().invoke(app, ["inspect", str(qwen), "--groups", "8", "--texts", str(tmp_path / "texts.txt")])
    assert seen == ["one", "two words"]
