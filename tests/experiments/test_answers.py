from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from tanbr.errors import CheckpointError, InputError
from tanbr.experiments.answers import Answers, Blended, Tagged, model_for
from tanbr.experiments.classifier import Classifier
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.layer import TaskRouting, route
from tanbr.moe.text import TextEncoder
from tanbr.serve.engine import Engine
from tanbr.tasks import glue, tiny
from tanbr.tasks.metrics import LabelSpace

ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 5, seed=7, split="test")]
TEXTS = [row.text for row in ROWS]
SOME = np.array([0.3, 0, 0, 0.2, 0, 0.5, 0, 0])


@pytest.fixture(scope="module")
def shared_below(moe: Moe, tmp_path_factory: pytest.TempPathFactory) -> Moe:
    """The embedded model with equal experts in all layers but the last."""
    folder = tmp_path_factory.mktemp("shared")
    for file in moe.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        experts = ".intermediate." in name or (".output." in name and ".attention." not in name and "Norm" not in name)
        if experts and ".layer.2." not in name:
            tensors[name] = value[:1].expand_as(value).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return open_moe(folder)


@pytest.mark.parametrize("blend", [np.eye(8)[3], np.full(8, 1 / 8), SOME], ids=["one", "uniform", "some"])
def test_a_replay_answers_as_the_engine_does(moe: Moe, shared_below: Moe, blend: np.ndarray) -> None:
    for model, first in ((moe, 0), (shared_below, 2)):
        replay, engine = Replay(model), Engine(model)
        assert replay.first == first
        replay.swap(np.eye(8)[0])
        replay.logits(TEXTS)  # stems are met under another blend
        replay.swap(blend)
        engine.swap(blend)
        np.testing.assert_allclose(
            replay.logits(TEXTS), engine.logits(TEXTS), atol=2e-4
        )  # float32, sums in another order


def test_a_replay_serves_a_merge_that_is_no_blend(moe: Moe) -> None:
    replay, engine = Replay(moe), Engine(moe)
    replay.put(moe.dense(SOME))
    engine.swap(SOME)
    np.testing.assert_allclose(replay.logits(TEXTS), engine.logits(TEXTS), atol=2e-4)  # float32, sums in another order
    replay.swap(np.eye(8)[0])  # and finds back
    engine.swap(np.eye(8)[0])
    np.testing.assert_allclose(replay.logits(TEXTS), engine.logits(TEXTS), atol=2e-4)  # float32, sums in another order


def test_no_text_is_answered_twice_under_a_blend(moe: Moe, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(moe)
    asked: list[int] = []
    answer = answers.model.logits
    monkeypatch.setattr(answers.model, "logits", lambda texts: asked.append(len(texts)) or answer(texts))
    one, other = Blended(answers), Blended(answers)
    one.swap(SOME)
    other.swap(SOME)
    first = one.logits(TEXTS[:8] + TEXTS[:4])
    np.testing.assert_array_equal(first[8:], first[:4])
    np.testing.assert_array_equal(other.logits(TEXTS[:8]), first[:8])
    assert other.swap(np.eye(8)[0]) == 2
    assert np.abs(other.logits(TEXTS[:2]) - first[:2]).max() > 1e-3
    np.testing.assert_array_equal(one.logits(TEXTS[:8]), first[:8])
    one.logits(TEXTS[:10])
    assert asked == [8, 2, 2]


def test_a_bad_blend_is_refused_and_the_old_one_goes_on(moe: Moe) -> None:
    server = Blended(Answers(moe))
    server.swap(SOME)
    before = server.logits(TEXTS[:2])
    with pytest.raises(InputError, match="sum to 1"):
        server.swap(np.full(8, 0.2))
    np.testing.assert_array_equal(server.logits(TEXTS[:2]), before)


def test_tagged_answers_are_those_of_the_unmerged_model(moe: Moe) -> None:
    tasks = [task.name for task in tiny.TASKS]
    tags = [tasks.index(row.task) for row in ROWS]
    unmerged = AutoModelForSequenceClassification.from_pretrained(moe.path).eval()
    route(unmerged, TaskRouting(torch.tensor(tags)))
    with torch.inference_mode():
        wanted = unmerged(**TextEncoder.of(moe.path, vocab_size=10**6)(TEXTS)).logits.numpy()
    server = Tagged(Answers(moe), dict(zip(TEXTS, tags, strict=True)), np.eye(8))
    np.testing.assert_allclose(server.logits(TEXTS), wanted, atol=2e-4)  # float32, sums in another order


def test_a_head_for_other_labels_is_refused(moe: Moe) -> None:
    check_head(Replay(moe), LabelSpace(tiny.TASKS))
    with pytest.raises(CheckpointError, match="the data's labels are 0, 1, entailment"):
        check_head(Replay(moe), LabelSpace(glue.TASKS))


def test_a_checkpoint_without_a_head_is_refused(moe: Moe, tmp_path: Path) -> None:
    for file in moe.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = {n: v for n, v in load_file(tmp_path / "model.safetensors").items() if not n.startswith("classifier")}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="lacks classifier"):
        Replay(open_moe(tmp_path))
