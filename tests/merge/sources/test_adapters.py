"""LoRA adapters as experts: what a merge adds is what PEFT adds, and one adapter can hold the blend of many."""

import json
import shutil

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import tanbr
from merge.sources.tiny_dense import adapter, build, tuned
from moe.tiny import load_plain
from tanbr.cli import app
from tanbr.errors import CheckpointError, InputError
from tanbr.merge.sources.one_adapter import export_adapter

BLEND = [0.5, 0.3, 0.2]
EPS = torch.finfo(torch.float32).eps
BERT, LLAMA, GPT2 = "BertForSequenceClassification", "LlamaForCausalLM", "GPT2LMHeadModel"
STORED = "adapter_model.safetensors"
Q, V, UP = ".attention.self.query", ".attention.self.value", ".intermediate.dense"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A base, and adapters of unequal ranks, targets and scales, two of which hold the head in full."""
    folder = tmp_path_factory.mktemp("adapters")
    build(BERT).save_pretrained(folder / "base")
    base, layers = folder / "base", [f"bert.encoder.layer.{number}" for number in range(2)]
    generator = torch.Generator().manual_seed(0)
    head = {name: value for name, value in load_file(base / "model.safetensors").items() if "classifier" in name}
    heads = [
        {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in head.items()}
        for _ in "ab"
    ]
    saved = {"modules_to_save": ["classifier"]}
    first = adapter(folder / "a", base, [f"{one}{Q}" for one in layers], r=4, seed=1, whole=heads[0], **saved)
    both = [f"{layers[0]}{Q}", f"{layers[0]}{UP}"]
    second = adapter(folder / "b", base, both, r=2, seed=2, use_rslora=True, whole=heads[1], **saved)
    patterns = {"rank_pattern": {f"{layers[1]}{V}": 3}, "alpha_pattern": {f"{layers[1]}{V}": 5}}
    third = adapter(folder / "c", base, [f"{layers[1]}{V}", f"{layers[0]}{V}"], r=6, seed=3, **patterns)
    return base, [first, second, third]


def merged_by_peft(base, folder):
    return peft.PeftModel.from_pretrained(load_plain(base), folder).merge_and_unload().state_dict()


def assert_alike(tensors, theirs) -> None:
    tensors = dict(tensors)
    for name, tensor in tensors.items():
        # at most twelve products and sums of what is no larger than the largest weight
        assert ((tensor - theirs[name]).abs() <= 32 * EPS * theirs[name].abs().max()).all(), name


def test_a_blend_is_the_weighted_sum_of_what_peft_merges(bert) -> None:
    base, adapters = bert
    moe = tanbr.open(base, experts=adapters)
    theirs = [merged_by_peft(base, folder) for folder in adapters]
    assert_alike(moe.tensors([0, 0, 1]), theirs[2])
    assert_alike(
        moe.tensors(BLEND), {name: sum(w * of[name] for w, of in zip(BLEND, theirs, strict=True)) for name in theirs[0]}
    )


def test_plain_peft_loads_the_one_adapter(bert, tmp_path) -> None:
    base, adapters = bert
    moe = tanbr.open(base, experts=adapters)
    joined = export_adapter(moe, tmp_path / "one", blend=BLEND)
    config = json.loads((joined / "adapter_config.json").read_text())
    assert config["lora_alpha"] == config["r"] == 4 + 2  # layer 0's query: two adapters; nothing has more
    assert_alike(moe.tensors(BLEND), merged_by_peft(base, joined))


@pytest.mark.parametrize("name", [BERT, LLAMA, GPT2, "T5ForConditionalGeneration"])
def test_adapters_that_peft_itself_wrote(name, tmp_path) -> None:
    base = build(name)
    base.save_pretrained(tmp_path / "base")
    targets = {BERT: ["query", "dense", "word_embeddings"], GPT2: ["c_attn"], LLAMA: ["q_proj", "down_proj"]}
    for k in range(2):
        config = peft.LoraConfig(
            r=k + 2,
            target_modules=targets.get(name, ["q", "wo"]),
            init_lora_weights=False,
            use_rslora=bool(k),
            fan_in_fan_out=name == GPT2,
        )
        torch.manual_seed(k)
        peft.get_peft_model(load_plain(tmp_path / "base"), config).save_pretrained(tmp_path / str(k))
    ours = tanbr.open(tmp_path / "base", experts=[tmp_path / "0", tmp_path / "1"]).tensors([0, 1])
    assert_alike(ours, merged_by_peft(tmp_path / "base", tmp_path / "1"))


# --- bad input --------------------------------------------------------------------------------------------------------


def in_whole_numbers(folder) -> None:
    tensors = load_file(folder / STORED)
    save_file({name: tensor.to(torch.int8) for name, tensor in tensors.items()}, folder / STORED)


WRONG = [  # settings that differ, or what becomes of the folder
    (in_whole_numbers, "must be 16- or 32-bit floats"),
    (lambda folder: (folder / STORED).rename(folder / "adapter_model.bin"), "convert it where you trust"),
    ({"modules_to_save": 7}, "modules_to_save"),
    ({"lora_alpha": "many"}, "alpha many"),
    ({"peft_type": "IA3"}, "type IA3"),
    ({"use_dora": True}, "use_dora"),
    ({"init_lora_weights": "pissa"}, "started by pissa"),
    ({"r": 5}, "factors have rank 4"),
    ({"r": 0}, "factors have rank 4"),
    ({"rank_pattern": {"(a+)+$": 4}}, "must name modules"),
    ({"rank_pattern": [3]}, "must be a JSON object"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_an_adapter_that_cannot_be_blended_is_refused_in_one_sentence(change, message, bert, tmp_path) -> None:
    wrong = shutil.copytree(bert[1][0], tmp_path / "wrong")
    if callable(change):
        change(wrong)
    else:
        file = wrong / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        tanbr.open(bert[0], experts=[bert[1][1], wrong])


@pytest.mark.parametrize(
    ("name", "changes", "module"),
    [(LLAMA, {}, "model.layers.0.self_attn.q_proj"), (BERT, {"intermediate_size": 40}, f"bert.encoder.layer.0{UP}")],
)
def test_an_adapter_of_another_base_is_refused(name, changes, module, bert, tmp_path) -> None:
    build(name, **changes).save_pretrained(tmp_path / "other")
    wrong = adapter(tmp_path / "wrong", tmp_path / "other", [module], r=2, seed=0)
    with pytest.raises(CheckpointError, match="made for another base"):
        tanbr.open(bert[0], experts=[bert[1][1], wrong])


def test_only_averages_of_adapters_are_adapters(bert, tmp_path) -> None:
    with pytest.raises(InputError, match="no sum of adapters"):
        export_adapter(tanbr.open(bert[0], experts=bert[1], method="ties"), tmp_path / "one", blend=BLEND)
    with pytest.raises(InputError, match="only a blend of adapters"):
        export_adapter(tanbr.open(tanbr.embedded()), tmp_path / "one", blend=[1 / 8] * 8)
    assert not (tmp_path / "one").exists()


def test_the_command_writes_a_model_or_an_adapter(bert, tmp_path) -> None:
    base, adapters = bert
    named = [word for one in adapters for word in ("--expert", str(one))]
    command = ["merge", str(base), *named, "--blend", "0.5,0.3,0.2"]
    for extra, out, made in (([], "dense", "certificate.json"), (["--as-adapter"], "one", "adapter_config.json")):
        result = CliRunner().invoke(app, [*command, *extra, str(tmp_path / out)])
        assert result.exit_code == 0, result.output
        assert (tmp_path / out / made).exists()
        assert json.loads((tmp_path / out / "certificate.json").read_text())["blend"] == [0.5, 0.3, 0.2]
        about = (tmp_path / out / "README.md").read_text()
        assert f'base_model: "{base.name}"' in about
        assert f"| {adapters[1].name} | 0.3000 |" in about
        assert str(tmp_path) not in about  # no place on this machine


def test_the_bases_share_of_an_adapter_is_what_the_others_lack(bert, tmp_path) -> None:
    base, adapters = bert
    moe = tanbr.open(base, experts=adapters, base=True)
    for blend in ([0.2, 0.1, 0.1, 0.6], [0, 0, 0, 1]):
        folder = export_adapter(moe, tmp_path / str(sum(blend[:3])), blend=blend)
        alone = tanbr.open(base, experts=[folder, adapters[0]])
        whole = dict(moe.tensors(blend))
        for name, tensor in alone.tensors([1, 0]):
            torch.testing.assert_close(tensor, whole[name], rtol=1e-5, atol=1e-6)
    one = tanbr.open(base, experts=adapters[:1], base=True)  # one adapter, as much of it as is wanted
    whole, nothing = (dict(one.tensors(blend)) for blend in ([1, 0], [0, 1]))
    assert_alike(one.tensors([0.25, 0.75]), {name: 0.25 * whole[name] + 0.75 * nothing[name] for name in whole})


def test_adapters_need_a_base_with_the_checkpoints_head(bert, tmp_path) -> None:
    build(BERT).bert.save_pretrained(tmp_path / "bare")
    bare = adapter(tmp_path / "x", tmp_path / "bare", [f"encoder.layer.0{Q}"], seed=1)
    whole = tuned(build(BERT), tmp_path / "whole", seed=2)
    with pytest.raises(CheckpointError, match="save the base with the head"):
        tanbr.open(tmp_path / "bare", experts=[bare, whole])


def test_adapters_with_heads_of_their_own_are_joined_by_the_labels_that_a_list_names(bert, tmp_path) -> None:
    base, folders = bert[0], []
    for k, count in enumerate((2, 4)):
        weight = torch.randn(count, 32, generator=torch.Generator().manual_seed(k))
        head = {"classifier.weight": weight, "classifier.bias": torch.full((count,), float(k))}
        folders.append(adapter(tmp_path / str(k), base, [f"bert.encoder.layer.0{Q}"], seed=k, whole=head))
    with pytest.raises(CheckpointError, match="its labels in a file that lists the experts"):
        tanbr.open(base, experts=folders)
    (tmp_path / "experts.toml").write_text(
        f'base = "{base}"\n[[experts]]\npath = "0"\nlabels = ["a", "b"]\n'
        '[[experts]]\npath = "1"\nlabels = ["b", "c", "d", "e"]\n'
    )
    merged = dict(tanbr.open(tmp_path / "experts.toml").tensors([0.5, 0.5]))
    assert merged["classifier.bias"].tolist() == [0, 0.5, 1, 1, 1]
    with pytest.raises(InputError, match="different labels"):
        export_adapter(tanbr.open(tmp_path / "experts.toml"), tmp_path / "out", blend=[0.5, 0.5])
