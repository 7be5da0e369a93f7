"""Opening checkpoints: lazily, and with one sentence for every way in which they can be broken."""

import contextlib
import json
import math
import os
import socket
import struct
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import tanbr.merge
from moe.tiny import build
from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import Checkpoint, FileWatch


@pytest.fixture
def folder(tmp_path):
    build("bert_moe").save_pretrained(tmp_path / "moe")
    return tmp_path / "moe"


def refused(folder, words) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        tanbr.merge.open(folder)
    assert "\n" not in str(caught.value)


def edit(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_tensors_are_those_that_were_saved(tmp_path) -> None:
    model = build("mixtral")
    model.save_pretrained(tmp_path / "moe", max_shard_size="20KB")
    checkpoint = Checkpoint(tmp_path / "moe")
    assert len(checkpoint.files) > 1
    expert = model.model.layers[1].mlp.experts.down_proj[2]
    assert torch.equal(checkpoint.tensor("model.layers.1.block_sparse_moe.experts.2.w2.weight"), expert)
    checkpoint.release()
    assert torch.equal(checkpoint.tensor("model.norm.weight"), model.model.norm.weight)


def test_unaligned_headers_are_read(tmp_path) -> None:
    values = torch.arange(6.0)
    header = json.dumps({"x": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}).encode()
    header += b" " * (1 - len(header) % 2)  # an odd length: nothing is aligned to the file
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values.numpy().tobytes())
    assert torch.equal(Checkpoint(tmp_path).tensor("x"), values)


def test_no_folder(tmp_path) -> None:
    refused(tmp_path / "nowhere", "is not a folder")


def test_no_config(folder) -> None:
    (folder / "config.json").unlink()
    refused(folder, "no config.json")


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"model_type": 3}', "\xff", "[" * 100_000, '{"model_type": ' + "9" * 5000 + "}"],
    ids=range(7),
)
def test_bad_config(folder, text) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(folder, "config.json")


def test_pickles_are_never_opened(folder) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    refused(folder, "pickle.*save_pretrained")


def test_no_weights(folder) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "neither model.safetensors nor")


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_truncated(folder, keep) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "truncated|corrupt")


@pytest.mark.parametrize(
    "header",
    [
        b"{not json",
        b'{"x": 3}',
        b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}',
        b'{"x": {"dtype": "Q3", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [0, 1000000000000], "data_offsets": [0, 0]}}',
        b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}',
        b'{"x": {"dtype": "F32", "shape": [' + b"1, " * 99 + b'1], "data_offsets": [0, 4]}}',
        b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, '
        b'"y": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}',
        b'{"x": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}',
        b"[]",
        b'"text"',
        b'{"\xff": 1}',
        b"[" * 100_000,
    ],
    ids=range(17),
)
def test_corrupt_header(folder, header) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 16)
    refused(folder, "corrupt|cannot be merged")


def test_missing_shard(tmp_path) -> None:
    build("mixtral").save_pretrained(tmp_path / "moe", max_shard_size="20KB")
    sorted((tmp_path / "moe").glob("*.safetensors"))[1].unlink()
    refused(tmp_path / "moe", "00002.*is missing")


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "{}",
        '{"weight_map": {"x": "../../elsewhere"}}',
        '{"weight_map": 3}',
        '{"weight_map": {"x": 3}}',
        "[" * 100_000,
    ],
    ids=range(6),
)
def test_corrupt_index(folder, index) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    refused(folder, "index.json (is corrupt|cannot be read)")


def test_index_that_names_lost_tensors(folder) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lost": "model.safetensors"}}')
    refused(folder, "lost for one")


@pytest.mark.parametrize("name", ["..", "", "a\0b", "config.json"])
def test_index_that_names_no_shard(folder, name) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    refused(folder, "no regular file|cannot read|no safetensors file|corrupt")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder"])
def test_only_regular_files_are_read(folder, name, kind) -> None:
    """A pipe without a writer would be waited for for ever, a device read without end."""
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(folder):  # the name must be short
            listener.bind(name)
    else:
        path.mkdir()
    refused(folder, "no regular file|cannot read|has no config.json|neither")


def test_unknown_architecture_names_the_nearest(folder) -> None:
    edit(folder, model_type="mixtrall")
    refused(folder, "nearest supported is 'mixtral'")


@pytest.mark.parametrize("model_type", ["llama4", "phimoe"])
def test_what_cannot_be_merged_is_refused_by_name(folder, model_type) -> None:
    edit(folder, model_type=model_type)
    refused(folder, f"{model_type} models cannot be merged: its router")


def test_quantised(folder) -> None:
    edit(folder, quantization_config={"quant_method": "mxfp4"})
    refused(folder, "quantised")


@pytest.mark.parametrize(
    "changes", [{"num_experts": 5}, {"num_experts": 0}, {"num_experts": "four"}, {"hidden_size": "x"}]
)
def test_configuration_that_does_not_fit(folder, changes) -> None:
    edit(folder, **changes)
    refused(folder, "experts|configuration")


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "hidden_act",
        "hidden_dropout_prob",
        "architectures",
        "dtype",
        "num_experts",
        "intermediate_size",
    ],
)
def test_a_crafted_configuration_is_one_sentence_or_a_model(folder, key) -> None:
    """Whatever it says, nothing but our own errors leaves, and no memory beyond the files' is asked for."""
    said = []
    for value in (-1, 0, math.nan, 1e30, "x", {}, 10**12, 2**63, None):
        edit(folder, **{key: value})
        try:
            tanbr.merge.open(folder).dense()
        except CheckpointError as error:
            said.append(str(error))
    assert said
    assert not any("\n" in sentence for sentence in said)


def test_layers_that_would_fill_the_memory(tmp_path) -> None:
    build("switch_transformers").save_pretrained(tmp_path / "moe")
    edit(tmp_path / "moe", num_layers=10**12)
    refused(tmp_path / "moe", "num_layers 1000000000000, more than it has tensors")


def test_more_experts_are_active_than_there_are(tmp_path) -> None:
    build("olmoe").save_pretrained(tmp_path / "moe")
    edit(tmp_path / "moe", num_experts_per_tok=99)
    refused(tmp_path / "moe", "make up no model: ")


def test_dense_checkpoint(folder) -> None:
    edit(folder, model_type="mixtral")
    refused(folder, "no experts|configuration")


def rewrite(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_experts_of_unequal_shape(tmp_path) -> None:
    build("mixtral").save_pretrained(tmp_path / "moe")
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    rewrite(tmp_path / "moe", lambda tensors: tensors.update({name: torch.zeros(7, 32)}))
    refused(tmp_path / "moe", r"experts of model.layers.1 differ in shape")


def test_an_expert_is_missing(tmp_path) -> None:
    build("mixtral").save_pretrained(tmp_path / "moe")
    rewrite(tmp_path / "moe", lambda tensors: tensors.pop("model.layers.0.block_sparse_moe.experts.3.w2.weight"))
    refused(tmp_path / "moe", "down of expert 3 is missing")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda tensors: tensors.pop("model.layers.1.self_attn.q_proj.weight"),
            "lacks model.layers.1.self_attn.q_proj",
        ),
        (lambda tensors: tensors.update({"model.extra": torch.zeros(2)}), "holds model.extra, for which Mistral"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.zeros(5)}), r"model.norm.weight is \(5,\)"),
        (
            lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers.0" in name and ".w2." in name],
            "lacks",
        ),
    ],
)
def test_tensors_that_do_not_make_up_the_dense_model(tmp_path, change, words) -> None:
    build("mixtral").save_pretrained(tmp_path / "moe")
    rewrite(tmp_path / "moe", change)
    moe = tanbr.merge.open(tmp_path / "moe")
    with pytest.raises(CheckpointError, match=words):
        moe.dense()
    with pytest.raises(CheckpointError, match=words):
        moe.export([0.25] * 4, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_router_is_missing_where_its_mass_is_needed(tmp_path) -> None:
    build("olmoe").save_pretrained(tmp_path / "moe")
    rewrite(tmp_path / "moe", lambda tensors: tensors.pop("model.layers.0.mlp.gate.weight"))
    refused(tmp_path / "moe", "lacks model.layers.0.mlp.gate.weight")


def test_unknown_hub_model(monkeypatch) -> None:
    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("tanbr.merge.moe.snapshot_download", offline)
    refused("nobody/nothing", "nobody/nothing is no folder here.*no network")


def test_a_file_that_changes_while_it_is_mapped_is_named_until_it_is_back(tmp_path) -> None:
    path, other = tmp_path / "weights", tmp_path / "other"
    for file in (path, other):
        file.write_bytes(b"weights")
        os.utime(file, (1, 1))
    watched = FileWatch([SimpleNamespace(path=path)])

    def is_noticed() -> None:
        with pytest.raises(CheckpointError, match=r"weights has changed since it was opened; put the old file back"):
            watched.check()

    for change in (lambda: path.write_bytes(b"longer weights"), lambda: os.utime(path, (0, 0))):
        watched.check()
        change()
        is_noticed()
        path.write_bytes(b"weights")
        os.utime(path, (1, 1))
    watched.check()
    other.replace(path)  # of the same size and time, but another file
    is_noticed()
    path.unlink()
    is_noticed()
