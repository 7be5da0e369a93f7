"""A server whose experts are checkpoints of their own."""

from pathlib import Path

import pytest

import tanbr
from merge.sources.tiny_dense import build as build_dense
from merge.sources.tiny_dense import tuned
from tanbr.errors import DataError, InputError, StateError
from tanbr.lab.settings import parse
from tanbr.lab.tasks import tiny
from tanbr.serve.backends.torch_int8 import TorchInt8
from tanbr.serve.build import build

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
    assert len(live.state().blend) == 3
    live.stop()
    build(base, experts=experts, config=CONFIG, state=tmp_path / "state").stop()
    with pytest.raises(StateError, match="made for"):
        build(base, experts=experts[:2], config=CONFIG, state=tmp_path / "state")


def test_int8_refuses_a_blend_of_what_its_two_models_share(tmp_path: Path) -> None:
    model = build_dense("BertForSequenceClassification")
    model.save_pretrained(tmp_path / "base")

    def trained(name: str) -> bool:
        return ".intermediate." in name or ".output.LayerNorm" in name

    experts = [tuned(model, tmp_path / str(k), seed=k, where=trained) for k in range(2)]
    moe = tanbr.open(tmp_path / "base", experts=experts)
    with pytest.raises(InputError, match=r"LayerNorm.* is no linear map"):
        TorchInt8.build(moe, blend=None, device="cpu", probes=list, least_agreement=0.0)


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
