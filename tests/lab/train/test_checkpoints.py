"""Dense checkpoints that training can start from, and those that it cannot."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tanbr
from lab.train import small
from merge.sources.tiny_dense import build, family, heads, tuned
from tanbr.cli import app
from tanbr.errors import CheckpointError, InputError
from tanbr.lab.tasks import tiny
from tanbr.lab.train.checkpoints import assemble, own_experts, prepare
from tanbr.merge import Moe
from tanbr.merge.sources.over_base import FFN
from tanbr.tasks.card import read_card


def test_what_cannot_be_trained_from(tmp_path: Path) -> None:
    def start(dense: Path) -> None:
        prepare(dense, small.SPACE, tmp_path / "start", max_length=16, seed=0)

    with pytest.raises(CheckpointError, match="nowhere"):
        start(tmp_path / "nowhere")
    dense = small.bert(tmp_path / "bert")
    small.tokenizer(words=[f"v{i}" for i in range(100)]).save_pretrained(dense)
    with pytest.raises(CheckpointError, match=r"tokenizer in .* has 103 words but the model only 64"):
        start(dense)
    (dense / "config.json").write_text((dense / "config.json").read_text().replace('"bert"', '"roberta"'))
    with pytest.raises(CheckpointError, match="must be a BERT or a T5"):
        start(dense)
    assert not (tmp_path / "start").exists()


EPS = torch.finfo(torch.float32).eps
BLEND = [0.5, 0.3, 0.2]
NAMES = ["BertForSequenceClassification", "T5ForConditionalGeneration", "MistralForCausalLM", "LlamaForCausalLM"]


def ffns(folder, name):
    """A base and copies of which the FFNs alone were trained."""
    model = build(name)
    model.save_pretrained(folder / "base")
    inner = {"BertForSequenceClassification": r"LayerNorm", "T5ForConditionalGeneration": r"layer_norm"}.get(name, "-")

    def trained(parameter: str) -> bool:
        return FFN.search(parameter) is not None and inner not in parameter

    return folder / "base", [tuned(model, folder / f"expert-{k}", seed=k + 1, where=trained) for k in range(3)]


@pytest.mark.parametrize("name", NAMES)
def test_the_moe_merges_to_what_its_experts_merge_to(name, tmp_path) -> None:
    base, folders = ffns(tmp_path, name)
    apart = tanbr.open(base, experts=folders)
    assert assemble(apart, tmp_path / "moe") == []
    moe = tanbr.open(tmp_path / "moe")
    assert moe.num_experts == 3
    whole = dict(apart.tensors(BLEND))
    for target, tensor in moe.tensors(BLEND):
        assert ((tensor - whole[target]).abs() <= 16 * EPS * float(whole[target].abs().max())).all(), target
    for k in range(3):
        alone = [float(k == other) for other in range(3)]
        whole = dict(apart.tensors(alone))
        assert all(torch.equal(tensor, whole[target]) for target, tensor in moe.tensors(alone))
    assert read_card(tmp_path / "moe").expert_tasks == ("expert-0", "expert-1", "expert-2")


def test_other_differences_are_refused_or_averaged_and_named(tmp_path) -> None:
    base, folders = family(tmp_path, "BertForSequenceClassification")
    apart = tanbr.open(base, experts=folders)
    with pytest.raises(CheckpointError, match=r"no FFN's .* --blend-only ffn .* --rest average"):
        assemble(apart, tmp_path / "moe")
    assert not (tmp_path / "moe").exists()
    averaged = assemble(apart, tmp_path / "moe", rest="average")
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert query in averaged
    assert not any("intermediate" in name for name in averaged)
    even, moe = dict(apart.tensors()), dict(tanbr.open(tmp_path / "moe").tensors([1, 0, 0]))
    assert torch.equal(moe[query], even[query])
    kept = tanbr.open(base, experts=folders, blend_only="ffn")
    assert assemble(kept, tmp_path / "kept") == []
    with pytest.raises(InputError, match="an MoE checkpoint already"):
        assemble(tanbr.open(tanbr.embedded()), tmp_path / "again")


def test_the_card_names_tasks_and_the_labels_of_each(tmp_path) -> None:
    heads(tmp_path, [("bad", "good"), ("spam", "ham", "eggs")])
    (tmp_path / "experts.toml").write_text(
        'base = "bare"\nblend_only = "ffn"\n[[experts]]\npath = "head-0"\ntask = "mood"\n'
        '[[experts]]\npath = "head-1"\ntask = "post"\n'
    )
    result = CliRunner().invoke(app, ["merge", "--mode", "moe", str(tmp_path / "experts.toml"), str(tmp_path / "moe")])
    assert result.exit_code == 0, result.output
    card = read_card(tmp_path / "moe")
    assert card.expert_tasks == ("mood", "post")
    assert [task.labels for task in card.tasks] == [("bad", "good"), ("spam", "ham", "eggs")]
    assert card.experts_of(["post", "mood"]) == (1, 0)
    config = json.loads((tmp_path / "moe" / "config.json").read_text())
    assert list(config["id2label"].values()) == ["bad", "good", "spam", "ham", "eggs"]
    assert tanbr.open(tmp_path / "moe").dense([0.5, 0.5]).config.num_labels == 5


def test_a_card_that_names_more_experts_than_there_are_is_refused(moe: Moe, tmp_path: Path) -> None:
    card = json.loads((Path(moe.path) / "tanbr.json").read_text())
    (tmp_path / "tanbr.json").write_text(json.dumps(card))
    few: Any = SimpleNamespace(path=tmp_path, num_experts=2, source=moe.source)
    with pytest.raises(CheckpointError, match="names a task for expert 7 of 2; mend it"):
        own_experts(few, [task.name for task in tiny.TASKS])
