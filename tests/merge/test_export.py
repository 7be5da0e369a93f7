"""What export writes, and what it leaves behind when it cannot."""

import errno
import json

import pytest
import torch
from typer.testing import CliRunner

import tanbr.merge
from moe.tiny import build, load_plain, logits
from tanbr.cli.merging import app
from tanbr.errors import CheckpointError, InputError, OutputError
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


def test_shards_and_companions(moe, tmp_path, monkeypatch) -> None:
    counts = []
    monkeypatch.setattr(writing, "SHARD_BYTES", 20_000)
    out = moe.export(UNIFORM, tmp_path / "out", progress=lambda done, total: counts.append((done, total)))
    assert len(list(out.glob("model-*.safetensors"))) > 1
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


def test_class_that_has_no_dense_counterpart(folder, tmp_path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["SomethingElse"]}))
    with pytest.raises(CheckpointError, match="must name one Mixtral"):
        tanbr.merge.open(folder).export(UNIFORM, tmp_path / "out")


def test_the_certificate_fails_when_a_factor_is_lost(tmp_path, monkeypatch) -> None:
    build("nllb-moe").save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    monkeypatch.setattr("tanbr.moe.family.OUTPUT_ROLES", frozenset())  # the fold goes nowhere
    with pytest.raises(CheckpointError, match="failed its own test"):
        moe.export(UNIFORM, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_what_inspect_calls_unmergeable_is_merged_by_force_only(folder, tmp_path) -> None:
    result = run("merge", folder, tmp_path / "out", "--blend", "even")  # its experts are random
    assert isinstance(result.exception, InputError)
    assert "do not merge: the experts share no ancestor" in str(result.exception)
    assert "--force" in str(result.exception)
    assert not (tmp_path / "out").exists()
    result = run("merge", folder, tmp_path / "out", "--blend", "even", "--force")
    assert result.exit_code == 0, result.output
    assert "MistralForCausalLM" in result.output
    one = run("merge", folder, tmp_path / "one", "--blend", "one-hot:1")  # which blends nothing
    assert one.exit_code == 0, one.output
    assert json.loads((tmp_path / "one" / "certificate.json").read_text())["blend"] == [0, 1, 0, 0]
