"""A server whose experts are checkpoints of their own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tanbr
from merge.sources.tiny_dense import build as build_dense
from merge.sources.tiny_dense import tuned
from tanbr.errors import CheckpointError, DataError, StateError
from tanbr.lab.settings import parse
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge.export import export
from tanbr.serve.backends.torch_eager import storage_of, tensors_of
from tanbr.serve.build import build, known_of, opened
from tanbr.serve.check import checked
from tanbr.serve.engine import Engine
from tanbr.serve.export import served
from tanbr.tasks.card import read_card, write_card

CONFIG = parse({"serve": {"slot_seconds": 3600, "threads": 1}}).serve


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("experts")
    moe = tanbr.open(tanbr.embedded())
    moe.export([1 / 8] * 8, folder / "base")
    experts = [moe.export([float(k == other) for other in range(8)], folder / str(k)) for k in range(3)]
    return folder / "base", experts


def test_it_answers_learns_and_knows_its_state_again(folders: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = folders
    live = build(base, experts=experts, config=CONFIG, state=tmp_path / "state")
    live.start()
    answered = live.submit([row.text for row in tiny.generate("sentiment", 4, seed=1)]).result(30)
    assert answered.logits.shape[0] == 4
    live.end_slot()
    assert live.info.expert_names == ("0", "1", "2", "base")  # nothing says whose task is whose: the base is one more
    assert len(live.state().blend) == 4
    assert len(live.info.tasks) == 3
    live.pin([0, 0, 0, 1])
    live.stop()
    one = served(tmp_path / "state")
    assert one.moe.source.with_base
    theirs = load_file(base / "model.safetensors")
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in one.moe.tensors(one.blend))
    assert (
        "| base | 1.0000 |"
        in export(one.moe, one.blend, tmp_path / "out", about=one.about).joinpath("README.md").read_text()
    )
    build(base, experts=experts, config=CONFIG, state=tmp_path / "state").stop()
    with pytest.raises(StateError, match="made for"):
        build(base, experts=experts[:2], config=CONFIG, state=tmp_path / "state")


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_in_int8_copies_whose_every_tensor_differs_take_little_more_than_in_float32(
    backend: str, tmp_path: Path
) -> None:
    model = build_dense("BertForSequenceClassification")
    model.save_pretrained(tmp_path / "base")
    experts = [tuned(model, tmp_path / str(k), seed=k, where=lambda _: True) for k in range(2)]
    moe = tanbr.open(tmp_path / "base", experts=experts)
    one: Any = Engine(moe, backend=backend, precision="int8", blend=[1.0, 0.0]).live.backend
    inputs = {"input_ids": np.array([[3, 4, 5]]), "attention_mask": np.ones((1, 3), dtype=int)}
    before, other = one.classify(inputs), one.twin(moe)
    for each in (one, other):  # what int8 and the model beside it have in float32 they share
        beside = {storage_of(tensor) for tensor in tensors_of(each.exact.model)}
        alone = [tensor for tensor in tensors_of(each.model) if storage_of(tensor) not in beside]
        assert {tensor.dtype for tensor in alone if tensor.ndim > 1} == {torch.int8}
    assert other.size.nbytes == one.size.nbytes
    other.merge(moe, np.array([0.0, 1.0]))
    np.testing.assert_array_equal(one.classify(inputs), before)
    one.merge(moe, np.array([0.0, 1.0]))
    np.testing.assert_array_equal(one.classify(inputs), other.classify(inputs))
    assert not np.array_equal(one.classify(inputs), before)


def test_a_list_names_tasks_method_and_the_start_blend(folders: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, experts = folders
    names = [task.name for task in tiny.TASKS[:3]]
    lines = [f'base = "{base}"', 'method = "task-arithmetic:scale=1.0"']
    for expert, name, weight in zip(experts, names, (2, 1, 1), strict=True):
        lines.append(f'[[experts]]\npath = "{expert}"\ntask = "{name}"\nweight = {weight}')
    (tmp_path / "experts.toml").write_text("\n".join(lines))
    with (tmp_path / "past.csv").open("w") as file:
        file.write("text,label,task\n")
        for name in names:
            file.writelines(f"words {name} {n},{tiny.BY_NAME[name].labels[n % 2]},{name}\n" for n in range(8))
    live = build(tmp_path / "experts.toml", config=CONFIG, state=tmp_path / "state", history=tmp_path / "past.csv")
    live.start()
    assert list(live.info.tasks) == names
    assert list(live.info.expert_names) == names
    assert live.state().blend == pytest.approx([0.5, 0.25, 0.25])
    live.stop()
    (tmp_path / "odd.jsonl").write_text(f'{{"text": "words", "task": "{names[0]}", "label": "lovely"}}')
    with pytest.raises(DataError, match=rf"odd.jsonl: no expert has the label 'lovely' of {names[0]} \(known are"):
        build(tmp_path / "experts.toml", config=CONFIG, state=tmp_path / "new", history=tmp_path / "odd.jsonl")
    assert not (tmp_path / "new").exists()


def test_the_base_is_an_expert_where_it_is_asked_for_or_nothing_says_whose_task_is_whose(
    folders: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    base, experts = folders
    assert opened(base, experts=experts).num_experts == 4
    assert opened(base, experts=experts, base=False).num_experts == 3
    assert opened(base, experts=experts[:1], base=True).num_experts == 2
    listed = "".join(f'[[experts]]\npath = "{one}"\ntask = "task {k}"\n' for k, one in enumerate(experts))
    (tmp_path / "experts.toml").write_text(f'base = "{base}"\n{listed}')
    assert opened(tmp_path / "experts.toml").num_experts == 3
    assert opened(tmp_path / "experts.toml", base=True).num_experts == 4
    weights = parse({"serve": {"slot_seconds": 3600, "blend": [0.5, 0.25, 0.25]}}).serve  # of the experts as they are
    live = build(base, experts=experts, config=weights, state=tmp_path / "state")
    assert live.info.experts == 3
    live.stop()
    said: list[str] = []
    build_dense("BertForSequenceClassification").save_pretrained(tmp_path / "odd")
    copies = [tuned(build_dense("BertForSequenceClassification"), tmp_path / str(k), seed=k) for k in range(2)]
    build_dense("BertForSequenceClassification", intermediate_size=40).save_pretrained(tmp_path / "odd")
    assert opened(tmp_path / "odd", experts=copies, say=said.append).num_experts == 2
    assert said[0].startswith("the base takes no weight: ")
    with pytest.raises(CheckpointError, match="the base cannot be an expert"):
        opened(tmp_path / "odd", experts=copies, base=True)


def test_an_moe_whose_card_names_its_ancestor_has_it_as_an_expert(tmp_path: Path) -> None:
    moe = tanbr.open(tanbr.embedded())
    shutil.copytree(moe.path, tmp_path / "model")
    moe.export([1 / 8] * 8, tmp_path / "ancestor")
    with pytest.raises(CheckpointError, match=r"does not name its ancestor in tanbr\.json"):
        opened(tmp_path / "model", base=True)
    card = replace(read_card(moe.path), ancestor="../ancestor")
    write_card(tmp_path / "model", card)
    assert opened(tmp_path / "model").num_experts == 8
    assert opened(tmp_path / "model", base=True).num_experts == 9
    write_card(tmp_path / "model", replace(card, expert_tasks=()))  # experts that belong to nobody
    assert opened(tmp_path / "model").num_experts == 9


def test_the_self_check_lists_the_base_alone_and_shows_it_texts_of_every_task(tmp_path: Path) -> None:
    moe = tanbr.open(tanbr.embedded())
    names = ("sentiment", "paraphrase")
    listed = [f'base = "{moe.export([1 / 8] * 8, tmp_path / "base")}"']
    for name in names:
        folder = moe.export([float(task == name) for task in read_card(moe.path).expert_tasks], tmp_path / name)
        listed.append(f'[[experts]]\npath = "{folder}"\ntask = "{name}"')
    (tmp_path / "experts.toml").write_text("\n".join([*listed, "[[experts]]", "base = true"]))
    rows = [row for name in names for row in tiny.generate(name, 30, seed=3)]
    past = [
        {"text": row.text, "task": row.task, "label": tiny.BY_NAME[row.task].labels[int(row.target)]} for row in rows
    ]
    (tmp_path / "past.jsonl").write_text("\n".join(map(json.dumps, past)))
    about = known_of(opened(tmp_path / "experts.toml"), tmp_path / "past.jsonl")
    assert about.own == (0, 1)
    found = checked(about, CONFIG, tmp_path, monitor=None, report=lambda *_: None)
    assert found is not None
    assert len(found.base) == 2
    assert np.mean(found.base) < np.mean(found.alone)
    assert {way.method for way in found.ways} == {"average", "regression"}
    assert (0.0, 0.0, 1.0) in found.blends
    moe = Moe(about.moe.source, method="regression")
    assert all(torch.isfinite(tensor).all() for _, tensor in moe.tensors([0.3, 0.3, 0.4]))
