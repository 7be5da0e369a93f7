import json

from typer.testing import CliRunner

import tanbr.merge
from moe.tiny import build
from tanbr.cli.merging import app
from tanbr.errors import DataError


def test_align_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    result = CliRunner().invoke(app, ["align", str(tmp_path / "moe"), str(tmp_path / "out"), "--reference", "1"])
    assert result.exit_code == 0, result.output
    assert tanbr.merge.open(tmp_path / "out").num_experts == 4


def test_inspect_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"input_ids": [5, 6, 7], "labels": 1}) + "\n")
    arguments = ["inspect", str(tmp_path / "moe"), "--data", str(data), "--out", str(tmp_path / "report")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "do not merge" in result.output
    assert max(map(len, result.output.splitlines())) <= 80  # and nothing is cut to fit
    assert "…" not in result.output
    for name in ("site", "distance", "cosine", "in place", "match", "moved", "bert.encoder.layer.1"):
        assert name in result.output
    report = json.loads((tmp_path / "report" / "inspect.json").read_text())
    assert report["verdict"] == "do not merge"
    assert len(report["lines"]) == 3
    assert (tmp_path / "report" / "inspect.png").stat().st_size > 1000
    data.write_text('{"input_ids": "words"}\n')
    assert isinstance(CliRunner().invoke(app, arguments).exception, DataError)
