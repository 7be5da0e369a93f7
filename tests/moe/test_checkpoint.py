"""Opening checkpoints: lazily, and with one sentence for every way in which they can be broken."""

import json
import math
import os
import shutil
import struct
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

import tanbr.merge
from moe.tiny import build
from tanbr.errors import CheckpointError
from tanbr.moe.checkpoint import FileWatch


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


def put(name, content):
    """A change that writes a file."""
    return lambda folder: (folder / name).write_bytes(content)


def pipe(name):
    """A change that puts a pipe without a writer in a file's place: it would be waited for for ever."""

    def change(folder) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


INDEX = "model.safetensors.index.json"
BROKEN = [
    (shutil.rmtree, "is not a folder"),
    (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors nor"),
    (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickle.*save_pretrained"),
    (lambda folder: edit(folder, model_type="mixtrall"), "nearest supported is 'mixtral'"),
    (lambda folder: edit(folder, quantization_config={"quant_method": "mxfp4"}), "quantised"),
    (lambda folder: edit(folder, model_type="mixtral"), "no experts|configuration"),
    *((lambda folder, K=K: edit(folder, num_experts=K), "experts|configuration") for K in (5, 0, "four")),
    (lambda folder: edit(folder, hidden_size="x"), "configuration"),
    *((pipe(name), "no regular file") for name in ("config.json", "model.safetensors", INDEX)),
    *(
        (put("config.json", text), "config.json")
        for text in (
            b"{",
            b"[]",
            b"{}",
            b'{"model_type": 3}',
            b"\xff",
            b"[" * 100_000,
            b'{"model_type": ' + b"9" * 5000,
        )
    ),
    (put(INDEX, b"{"), "cannot be read"),
    (put(INDEX, b"[" * 100_000), "cannot be read"),
    *((put(INDEX, text), "is corrupt") for text in (b"{}", b'{"weight_map": 3}', b'{"weight_map": {"x": 3}}')),
    (put(INDEX, b'{"weight_map": {"x": "../../elsewhere"}}'), "is corrupt"),
    (put(INDEX, b'{"weight_map": {"lost": "model.safetensors"}}'), "lost for one"),
    (put(INDEX, b'{"weight_map": {"x": "config.json"}}'), "config.json is corrupt"),
    *(
        (put(INDEX, json.dumps({"weight_map": {"x": name}}).encode()), "regular file|cannot read|corrupt")
        for name in ("..", "", "a\0b")
    ),
]


@pytest.mark.parametrize(("change", "words"), BROKEN)
def test_a_broken_checkpoint_is_one_sentence(folder, change, words) -> None:
    change(folder)
    refused(folder, words)


ENTRY = '{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
CHANGES = [  # of a header that is whole
    ("[1]", "[2]"), ("[1]", "[-1]"), ("[1]", "[true]"), ("[1]", f"[{'1, ' * 99}1]"), ("[1]", f"[{'9' * 5000}]"),
    ('[1], "data_offsets": [0, 4]', '[0, 1000000000000], "data_offsets": [0, 0]'), ('"F32"', '"Q3"'),
    ("[0, 4]", "[2, 6]"), ("[0, 4]", "[-4, 0]"), ('"F32"', '["F32"]'),
    ("}}", '}, "y": {"dtype": "F32", "shape": [2], "data_offsets": [2, 10]}}'),
]  # fmt: skip
HEADERS = [
    *(b"{not json", b"[]", b'"text"', b'{"x": 3}', b'{"\xff": 1}', b"[" * 100_000),
    *(ENTRY.replace(*change).encode() for change in CHANGES),
    b'{"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, '
    b'"y": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}',
]


@pytest.mark.parametrize("header", HEADERS, ids=range(18))
def test_corrupt_header(folder, header) -> None:
    size = 9 if b"U8" in header else 4
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * size)
    refused(folder, "corrupt|cannot be merged")


def test_missing_shard(tmp_path) -> None:
    build("mixtral").save_pretrained(tmp_path / "moe", max_shard_size="20KB")
    sorted((tmp_path / "moe").glob("*.safetensors"))[1].unlink()
    refused(tmp_path / "moe", "00002.*is missing")


CRAFTED = (
    "hidden_size num_hidden_layers num_attention_heads vocab_size max_position_embeddings hidden_act "
    "hidden_dropout_prob architectures dtype num_experts intermediate_size"
)


@pytest.mark.parametrize("key", CRAFTED.split())
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


def rewrite(folder, changes) -> None:
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")


EXPERT = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
GATE = "model.layers.0.mlp.gate.weight"
UNFIT = [  # family, settings, tensors (None is none), and what is said
    ("switch_transformers", {"num_layers": 10**12}, {}, "num_layers 1000000000000, more than it has tensors"),
    ("olmoe", {"num_experts_per_tok": 99}, {}, "make up no model: "),
    ("olmoe", {}, {GATE: None}, f"lacks {GATE}"),  # which the experts' scale is taken from
    ("mixtral", {}, {EXPERT: torch.zeros(7, 32)}, "experts of model.layers.1 differ in shape"),
    ("mixtral", {}, {EXPERT: None}, "gate of expert 2 is missing"),
]


@pytest.mark.parametrize(("family", "settings", "tensors", "words"), UNFIT)
def test_what_does_not_fit_its_family_is_one_sentence(tmp_path, family, settings, tensors, words) -> None:
    build(family).save_pretrained(tmp_path / "moe")
    edit(tmp_path / "moe", **settings)
    rewrite(tmp_path / "moe", tensors)
    refused(tmp_path / "moe", words)


Q = "model.layers.1.self_attn.q_proj"
DOWN = {f"model.layers.0.block_sparse_moe.experts.{k}.w2.weight": None for k in range(4)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({f"{Q}.weight": None}, f"lacks {Q}"),
        ({"model.extra": torch.zeros(2)}, "holds model.extra, for which Mistral"),
        ({"model.norm.weight": torch.zeros(5)}, r"model.norm.weight is \(5,\)"),
        (DOWN, "lacks"),
    ],
)
def test_tensors_that_do_not_make_up_the_dense_model(tmp_path, changes, words) -> None:
    build("mixtral").save_pretrained(tmp_path / "moe")
    rewrite(tmp_path / "moe", changes)
    moe = tanbr.merge.open(tmp_path / "moe")
    with pytest.raises(CheckpointError, match=words):
        moe.dense()
    with pytest.raises(CheckpointError, match=words):
        moe.export([0.25] * 4, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_hub_model(monkeypatch) -> None:
    monkeypatch.setattr("tanbr.merge.moe.snapshot_download", Mock(side_effect=OSError("no network")))
    refused("nobody/nothing", "nobody/nothing is no folder here.*no network")


def test_a_file_that_changes_while_it_is_mapped_is_named_until_it_is_back(tmp_path) -> None:
    path, other = tmp_path / "weights", tmp_path / "other"
    for file in (path, other):
        file.write_bytes(b"weights")
        os.utime(file, (1, 1))
    watched = FileWatch([SimpleNamespace(path=path)])
    for change in (lambda: path.write_bytes(b"longer weights"), lambda: os.utime(path, (0, 0))):
        watched.check()
        change()
        with pytest.raises(CheckpointError, match=r"weights has changed since it was opened; put the old file back"):
            watched.check()
        path.write_bytes(b"weights")
        os.utime(path, (1, 1))
    watched.check()
    other.replace(path)  # of the same size and time, but another file
    with pytest.raises(CheckpointError, match="has changed"):
        watched.check()
