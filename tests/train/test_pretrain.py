"""Training from a dense checkpoint, end to end on tiny models; interrupted, it ends in the same weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tanbr.baselines.switch import Switch
from tanbr.errors import CheckpointError, OutputError, StateError
from tanbr.experiments import glue_moe
from tanbr.train.checkpoints import prepare
from tanbr.train.curve import Curve
from tanbr.train.pretrain import batch_sizes
from train import small


class Stopped(Exception):
    pass


def train(dense: Path, out: Path, *, stop_at: tuple[str, int] | None = None, **options: Any) -> Path:
    def report(phase: str, done: int, total: int, note: str) -> None:
        if (phase, done) == stop_at:
            raise Stopped

    return glue_moe.train(
        small.CONFIG, dense=dense, rows=small.TRAIN, held=small.HELD, out=out, report=report, **options
    )[0]


@pytest.mark.parametrize(
    ("kind", "stop_at"), [("bert", ("ancestor", 3)), ("bert", ("experts", 5)), ("t5", ("experts", 5))]
)
def test_an_interrupted_run_ends_in_the_same_weights_and_curve(
    kind: str, stop_at: tuple[str, int], tmp_path: Path
) -> None:
    dense = small.DENSE[kind](tmp_path / "dense")
    whole = train(dense, tmp_path / "whole", workers=2)
    with pytest.raises(Stopped):
        train(dense, tmp_path / "halved", stop_at=stop_at)
    halved = train(dense, tmp_path / "halved", workers=1)  # the number of workers changes nothing
    weights, again = (load_file(folder / "model.safetensors") for folder in (whole, halved))
    assert weights.keys() == again.keys()
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name
    assert (tmp_path / "whole/model.jsonl").read_text() == (tmp_path / "halved/model.jsonl").read_text()
    steps, figures = Curve(tmp_path / "whole/model.jsonl").series("figure", "RTE")
    assert steps[:1] == [2]
    assert all(0 <= figure <= 1 for figure in figures)
    frozen = "bert.embeddings.word_embeddings.weight" if kind == "bert" else "shared.weight"
    assert torch.equal(weights[frozen], load_file(dense / "model.safetensors")[frozen.removeprefix("bert.")])
    experts = next(value for name, value in weights.items() if value.dim() == 3)
    assert not torch.equal(experts[0], experts[1])
    ancestor = load_file(tmp_path / "whole/ancestor/model.safetensors")
    moved = [name for name, value in weights.items() if value.dim() == 2 and not torch.equal(value, ancestor[name])]
    assert moved  # what is shared went on learning
    assert train(dense, tmp_path / "whole") == whole  # finished: nothing to do
    other = small.DENSE[kind](tmp_path / "other", seed=1)
    with pytest.raises(StateError, match="from another checkpoint"):
        train(other, tmp_path / "whole")


def test_the_trained_model_is_scored_on_unseen_rows(tmp_path: Path) -> None:
    _, figures = glue_moe.train(
        small.CONFIG, dense=small.bert(tmp_path / "dense"), rows=small.TRAIN, held=small.HELD, unseen=small.HELD,
        out=tmp_path, report=lambda *_: None,
    )  # fmt: skip
    assert set(figures) == {"tags", "average"}
    assert set(figures["tags"]) == set(figures["average"]) == set(small.TRAIN)


def test_a_batch_grows_with_a_tasks_rows() -> None:
    assert batch_sizes({"a": [None] * 10, "b": [None] * 90}, small.CONFIG) == [2, 6]  # type: ignore[dict-item]


def test_gates_learn_with_token_routing_and_resume(tmp_path: Path) -> None:
    dense = small.bert(tmp_path / "dense")
    whole = load_file(train(dense, tmp_path / "whole", gates=Switch) / "model.safetensors")
    with pytest.raises(Stopped):
        train(dense, tmp_path / "halved", gates=Switch, stop_at=("gates", 3))
    again = load_file(train(dense, tmp_path / "halved", gates=Switch) / "model.safetensors")
    for name, value in whole.items():
        assert torch.equal(value, again[name]), name
    assert json.loads((tmp_path / "whole/model/config.json").read_text())["router"]
    assert any(name.endswith("gate.weight") for name in whole)


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


def test_a_state_that_cannot_be_written_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = small.bert(tmp_path / "dense")
    with pytest.raises(Stopped):
        train(dense, tmp_path / "out", stop_at=("experts", 3))
    before = (tmp_path / "out/model.state").read_bytes()

    def full(_: Any, path: Path, **__: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tanbr.train.run.save_file", full)
    with pytest.raises(OutputError, match="No space left on device"):
        train(dense, tmp_path / "out")
    assert (tmp_path / "out/model.state").read_bytes() == before
    assert not list((tmp_path / "out").glob("*.partial"))


def test_a_curve_forgets_what_comes_after_a_step(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "curve.jsonl")
    for step in (1, 2, 3):
        curve.add(step, "loss", {"a": step / 2})
    with curve.path.open("a") as file:
        file.write('{"step": 4, "lo')  # torn off
    curve.rewind(2)
    assert curve.series("loss", "a") == ([1, 2], [0.5, 1.0])
