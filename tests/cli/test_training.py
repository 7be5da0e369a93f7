"""`tanbr pretrain` and `tanbr finetune` as commands."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tanbr.cli import app
from tanbr.errors import ConfigError, TanbrError
from tanbr.train.interruption import Interruption

RUN = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("pretrain --preset minilm", "needs a dense checkpoint"),
        ("pretrain --preset minilm --from here", "needs a dense checkpoint"),
        ("pretrain --preset minilm --from here --data nowhere", "no GLUE folder at nowhere"),
        ("finetune --router thompson", "unknown router 'thompson'; choose one of tanbr"),
        ("finetune --data nowhere", "no GLUE folder at nowhere"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: str, says: str) -> None:
    done = RUN.invoke(app, [*arguments.split(), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, TanbrError)
    assert says in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_finetune_tunes_the_embedded_model_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "few.toml").write_text("[finetune]\ntrain_rows = 40\neval_rows = 8\nbatch = 8\nsteps = 3\n")
    arguments = ["finetune", "--router", "tanbr,switch", "--config", f"{tmp_path}/few.toml", "--out", f"{tmp_path}/out"]
    done = RUN.invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "mean" in done.stdout
    result = json.loads((tmp_path / "out/tanbr/finetune.json").read_text())
    assert result["config"]["steps"] == 3
    assert set(result["figures"]) == {"tags", "average", "tuned even", "tuned own", "untuned even", "untuned own"}
    assert str(tmp_path) not in result["command"]
    assert {file.name for file in (tmp_path / "out/tanbr").iterdir()} >= {"model", "router.state", "tuned.jsonl"}
    assert (tmp_path / "out/losses.png").stat().st_size > 1_000
    before = (tmp_path / "out/tanbr/tuned.jsonl").read_text()
    assert RUN.invoke(app, arguments).exit_code == 0  # all steps are taken: nothing changes
    assert (tmp_path / "out/tanbr/tuned.jsonl").read_text() == before
    with pytest.raises(ConfigError, match="finetune"):
        RUN.invoke(app, ["finetune", "--config", str(_bad(tmp_path))], catch_exceptions=False)


def _bad(folder: Path) -> Path:
    (folder / "bad.toml").write_text("[finetune]\nstepz = 3\n")
    return folder / "bad.toml"


class Asked(Interruption):
    """Ctrl-C in the first step."""

    def __enter__(self) -> Interruption:
        self.asked = True
        return self


def test_a_run_that_is_interrupted_says_where_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "few.toml").write_text("[finetune]\ntrain_rows = 40\neval_rows = 8\nbatch = 8\nsteps = 3\n")
    monkeypatch.setattr("tanbr.train.run.Interruption", Asked)
    done = RUN.invoke(app, ["finetune", "--config", f"{tmp_path}/few.toml", "--out", f"{tmp_path}/out"])
    assert done.exit_code == 130
    assert "tuned.state holds step 1; the same command goes on from there" in " ".join(done.output.split())
    assert (tmp_path / "out/tanbr/tuned.state").exists()
