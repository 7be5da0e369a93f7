"""K fine-tuned checkpoints are merged like the experts of an MoE: every tensor that differs, in every architecture."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import tanbr
from merge.sources.tiny_dense import MODELS, build, family, heads, tuned
from moe.tiny import load_plain, logits
from tanbr.errors import CheckpointError, InputError
from tanbr.merge import Moe
from tanbr.merge.inspect import glance, inspect

BLEND = [0.5, 0.3, 0.2]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return family(tmp_path_factory.mktemp("bert"), "BertForSequenceClassification")


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_blend(merged, experts, blend, names=None) -> None:
    """Each tensor is the float64 sum, summed in float32 and rounded once to its type."""
    files = [weights(folder) for folder in experts]
    for name in names or files[0]:
        terms = [weight * file[name].double() for weight, file in zip(blend, files, strict=True)]
        sums = 2 * len(terms) * torch.finfo(torch.float32).eps * sum(term.abs() for term in terms)
        bound = sums + torch.finfo(merged[name].dtype).eps * sum(terms).abs()
        assert ((merged[name].double() - sum(terms)).abs() <= bound).all(), name


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_is_blended_whole_and_exported(name, tmp_path) -> None:
    base, experts = family(tmp_path, name)
    moe = tanbr.open(base, experts=experts)
    moe.export(BLEND, tmp_path / "out")
    assert_blend(weights(tmp_path / "out"), experts, BLEND)
    torch.testing.assert_close(logits(load_plain(tmp_path / "out")), logits(moe.dense(BLEND)), rtol=0, atol=0)


def test_a_tensor_that_follows_from_the_settings_may_be_saved_or_not(tmp_path) -> None:
    base, experts = family(tmp_path, "BertForSequenceClassification")
    file = experts[0] / "model.safetensors"
    plain = weights(experts[0])
    save_file(plain | {"bert.embeddings.position_ids": torch.arange(8)[None]}, file, {"format": "pt"})
    moe = tanbr.open(base, experts=experts)
    moe.export(BLEND, tmp_path / "out")
    assert set(weights(tmp_path / "out")) == set(plain)
    assert_blend(weights(tmp_path / "out"), experts, BLEND, names=plain)


def test_a_bare_base_is_the_ancestor_of_models_with_a_head(bert, tmp_path) -> None:
    _, experts = bert
    load_plain(bert[0]).bert.save_pretrained(tmp_path / "bare")  # encoder.layer.0… instead of bert.encoder.layer.0…
    moe = tanbr.open(tmp_path / "bare", experts=experts, blend_only="ffn")
    merged = dict(moe.tensors(BLEND))
    assert_blend(merged, experts, BLEND, ["classifier.weight", "classifier.bias"])  # the base has no head to keep
    assert torch.equal(merged["bert.pooler.dense.weight"], weights(bert[0])["bert.pooler.dense.weight"])


def test_an_expert_in_a_folder_called_base_is_not_taken_for_the_base(bert, tmp_path, monkeypatch) -> None:
    shutil.copytree(bert[1][0], tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    named, other = (tanbr.open(bert[0], experts=[first, bert[1][1]]) for first in ("base", bert[1][0]))
    for method in ("average", "task-arithmetic"):
        merged = dict(Moe(named.source, method=method).tensors([0.5, 0.5]))
        for name, tensor in Moe(other.source, method=method).tensors([0.5, 0.5]):
            assert torch.equal(tensor, merged[name]), name


def test_inspect_names_the_expert_that_came_from_elsewhere(bert, tmp_path) -> None:
    base, experts = bert
    moe = tanbr.open(base, experts=experts)
    assert glance(moe) == inspect(moe)
    assert inspect(moe).verdict == "merge"
    build("BertForSequenceClassification", seed=9).save_pretrained(tmp_path / "stranger")
    moe = tanbr.open(base, experts=[*experts, tmp_path / "stranger"])
    seen = inspect(moe)
    assert seen.verdict == "do not merge"
    assert "stranger" in seen.reason
    assert not any(str(expert) in seen.reason for expert in experts)


def test_experts_that_differ_in_their_heads_alone_may_be_merged(tmp_path) -> None:
    model = build("BertForSequenceClassification")
    model.bert.save_pretrained(tmp_path / "bare")
    experts = [tuned(model, tmp_path / str(k), seed=k, where=lambda name: "classifier" in name) for k in range(2)]
    moe = tanbr.open(tmp_path / "bare", experts=experts)
    assert glance(moe) == inspect(moe)
    assert inspect(moe).verdict == "merge"


def test_an_expert_alone_answers_its_own_labels_as_it_did_before_heads_were_joined(tmp_path) -> None:
    labels, union = [("bad", "good"), ("good", "fair", "bad"), ("fair", "awful")], ("bad", "good", "fair", "awful")
    base, experts = heads(tmp_path, labels)
    moe = tanbr.open(base, experts=experts)
    inputs = {"input_ids": torch.randint(0, 64, (4, 9), generator=torch.Generator().manual_seed(0))}
    for k, folder in enumerate(experts):
        joined, columns = moe.dense(torch.eye(3)[k].tolist()), [union.index(label) for label in labels[k]]
        with torch.no_grad():
            theirs, mine = load_plain(folder)(**inputs).logits, joined(**inputs).logits[:, columns]
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


# --- bad input --------------------------------------------------------------------------------------------------------


LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
WRONG = [
    ({"name": "LlamaForCausalLM"}, "one architecture, but model_type"),
    ({"num_attention_heads": 4}, "num_attention_heads"),
    ({"vocab_size": 60}, "one vocabulary"),
    (LABELS, "does not name its own"),
    ({"intermediate_size": 40}, "equal tensors"),
    ({"num_hidden_layers": 1}, "the same tensors"),
    ({"dtype": torch.bfloat16}, "bfloat16"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_an_expert_that_does_not_fit_is_refused_in_one_sentence(changes, message, bert, tmp_path) -> None:
    base, experts = bert
    build(**{"name": "BertForSequenceClassification"} | changes).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match=message):
        tanbr.open(base, experts=[*experts, tmp_path / "other"])


def test_a_head_with_one_label_twice_is_refused(tmp_path) -> None:
    base, folders = heads(tmp_path, [("no", "no"), ("yes", "no")])
    with pytest.raises(CheckpointError, match="names a label twice"):
        tanbr.open(base, experts=folders)


def test_one_expert_or_the_same_twice_is_no_blend(bert) -> None:
    base, experts = bert
    with pytest.raises(InputError, match="two experts or more"):
        tanbr.open(base, experts=experts[:1])
    with pytest.raises(InputError, match="named twice"):
        tanbr.open(base, experts=[experts[0], experts[0]])
