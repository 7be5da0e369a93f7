"""What export writes, and what it leaves behind when it cannot."""

import errno
import json

import pytest
import torch
from typer.testing import CliRunner

import tanbr.merge
from moe.tiny import build, load_plain, logits
from tanbr.cli.merging import app
from tanbr.errors import InputError, OutputError
from tanbr.moe import writing


@pytest.fixture
def folder(tmp_path):
    build("mixtral").save_pretrained(tmp_path / "moe")
    (tmp_path / "moe" / "tokenizer.json").write_text("{}")
    return tmp_path / "moe"


@pytest.fixture
def moe(folder):
    return tanbr.merge.open(folder)


UNIFORM = [0.25] * 4


def test_progress_and_companions(moe, tmp_path) -> None:
    counts = []
    out = moe.export(UNIFORM, tmp_path / "out", progress=lambda done, total: counts.append((done, total)))
    assert (out / "tokenizer.json").exists()
    assert counts[-1][0] == counts[-1][1] == len(counts) - 1
    torch.testing.assert_close(logits(load_plain(out)), logits(moe.dense(UNIFORM)), rtol=0, atol=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moe", "out"]


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), pytest.raises(OutputError, match="disk is full")),
        (RuntimeError("a bug"), pytest.raises(RuntimeError, match="a bug")),
    ],
)
def test_whatever_fails_leaves_nothing_behind(moe, tmp_path, monkeypatch, error, seen) -> None:
    def fails(path, tensors, flow):
        path.write_bytes(b"half")
        next(flow)
        raise error

    monkeypatch.setattr(writing, "write_file", fails)
    with seen:
        moe.export(UNIFORM, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["moe"]


def test_what_inspect_calls_unmergeable_is_merged_by_force_only(folder, tmp_path) -> None:
    def run(out, *arguments):
        return CliRunner().invoke(app, ["merge", str(folder), str(tmp_path / out), "--blend", *arguments])

    refused = run("out", "even").exception  # its experts are random
    assert isinstance(refused, InputError)
    assert "do not merge: the experts share no ancestor" in str(refused)
    assert not (tmp_path / "out").exists()
    assert "MistralForCausalLM" in run("out", "even", "--force").output
    assert run("one", "one-hot:1").exit_code == 0  # which blends nothing
    assert json.loads((tmp_path / "one" / "certificate.json").read_text())["blend"] == [0, 1, 0, 0]
