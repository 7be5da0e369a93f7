"""`tanbr pretrain` and `tanbr finetune` as commands."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.train.small import bert
from tanbr.cli import app
from tanbr.errors import TanbrError
from tanbr.lab.tasks import glue
from tanbr.lab.train import pretrain
from tanbr.lab.train.config import MINILM, Preset, Tuning
from tanbr.tasks.card import read_card

RUN = CliRunner()


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune on few rows, and measure on fewer."""
    few = {"train_rows": 40, "eval_rows": 8}
    monkeypatch.setattr("tanbr.cli.training.Tuning", lambda **settings: Tuning(**settings | few))


def test_finetune_tunes_the_embedded_model_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "few.toml").write_text("[finetune]\nbatch = 8\nsteps = 3\n")
    arguments = ["finetune", "--router", "tanbr,switch", "--config", f"{tmp_path}/few.toml", "--out", f"{tmp_path}/out"]
    done = RUN.invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "mean" in done.stdout
    result = json.loads((tmp_path / "out/tanbr/finetune.json").read_text())
    assert result["config"]["steps"] == 3
    assert set(result["figures"]) == {"tuned even", "tuned own", "untuned even", "untuned own"}
    assert set(json.loads((tmp_path / "out/untuned.json").read_text())) == {"tags", "average"}
    assert str(tmp_path) not in result["command"]
    assert {file.name for file in (tmp_path / "out/tanbr").iterdir()} >= {"model", "router.state", "tuned.jsonl"}
    before = (tmp_path / "out/tanbr/tuned.jsonl").read_text()
    assert RUN.invoke(app, arguments).exit_code == 0  # all steps are taken: nothing changes
    assert (tmp_path / "out/tanbr/tuned.jsonl").read_text() == before


def test_a_file_is_laid_over_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Preset] = []

    def train(config: Preset, **_: object) -> None:
        seen.append(config)
        raise TanbrError("enough was seen")

    monkeypatch.setattr(glue, "load", lambda data, **_: {})
    monkeypatch.setattr(pretrain, "train_from_dense", train)
    (tmp_path / "t.toml").write_text("[pretrain]\nsteps = 7\n")
    arguments = ["--preset", "minilm", "--from", "dense", "--data", "glue", "--config", f"{tmp_path}/t.toml"]
    RUN.invoke(app, ["pretrain", *arguments])
    assert seen == [MINILM.model_copy(update={"steps": 7})]
    RUN.invoke(app, ["pretrain", *arguments, "--adapters", "4"])
    assert (seen[1].adapters, seen[1].mergeable) == (4, 0.0)  # blends of adapters cannot be trained


def test_pretrain_and_finetune_take_rows_of_ones_own(tmp_path: Path) -> None:
    bert(tmp_path / "dense")
    for task, labels in (("mood", ("glad", "sad")), ("size", ("big", "mid", "small"))):
        rows = [f"w{n % 20} w{n % 7},{labels[n % len(labels)]}" for n in range(60)]
        (tmp_path / f"{task}.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "few.toml").write_text("[pretrain]\nsteps = 2\nancestor_steps = 1\n[finetune]\nsteps = 2\n")
    rows = ["--data", f"{tmp_path}", "--config", f"{tmp_path}/few.toml"]
    command = ["pretrain", "--preset", "minilm", "--from", f"{tmp_path}/dense", *rows, "--out", f"{tmp_path}/out"]
    done = RUN.invoke(app, [*command, "--threads", "1"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    card = read_card(tmp_path / "out/model")
    assert card.expert_tasks == ("mood", "size")
    assert [task.labels for task in card.tasks] == [("glad", "sad"), ("big", "mid", "small")]
    assert set(json.loads((tmp_path / "out/training.json").read_text())["dev"]["tags"]) == {"mood", "size"}
    rival = [*command[:-1], f"{tmp_path}/dense-too", "--routing", "none", "--precision", "bfloat16"]
    assert RUN.invoke(app, rival, catch_exceptions=False).exit_code == 0
    assert set(json.loads((tmp_path / "dense-too/training.json").read_text())["dev"]) == {"dense"}
    command = ["finetune", f"{tmp_path}/out/model", *rows, "--router", "average", "--out", f"{tmp_path}/tuned"]
    assert RUN.invoke(app, command, catch_exceptions=False).exit_code == 0
