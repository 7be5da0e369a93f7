import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from moe.tiny import build
from tanbr.errors import CheckpointError
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.layer import TaskRouting, route
from tanbr.serve.engine import Engine
from tanbr.serve.shadow import Shadow

ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 4, seed=7, split="test")]


def test_it_answers_as_the_whole_moe_does(moe: Moe) -> None:
    from tanbr.moe.families.bert import BertMoeForSequenceClassification

    shadow, engine = Shadow(moe, experts_of=range(8)), Engine(moe)
    inputs = engine.encode([row.text for row in ROWS])
    tasks = np.array([[task.name for task in tiny.TASKS].index(row.task) for row in ROWS])
    whole = BertMoeForSequenceClassification.from_pretrained(moe.path).eval()
    route(whole, TaskRouting(torch.from_numpy(tasks)))
    with torch.inference_mode():
        expected = whole(**inputs).logits[:, :14].argmax(dim=1).numpy()
    np.testing.assert_array_equal(shadow.labels(inputs, tasks, 14), expected)


@pytest.mark.parametrize("family", ["t5_moe", "switch_transformers"])
def test_a_text_models_own_words_agree_with_it(tmp_path: Path, family: str) -> None:
    model = build(family)
    model.save_pretrained(tmp_path)
    shadow = Shadow(open_moe(tmp_path), experts_of=range(4))
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 1]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    if family == "t5_moe":
        route(model, TaskRouting(torch.tensor([2])))
    with torch.inference_mode():
        written = model.generate(
            **inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False, decoder_start_token_id=0
        )[0, 1:].tolist()
    assert shadow.agreement(inputs, written, 2) == 1.0
    other = [(token + 1) % 64 for token in written]
    assert shadow.agreement(inputs, other, 2) < 1.0


def test_a_family_that_is_stored_in_another_form_says_so(tmp_path: Path) -> None:
    build("mixtral").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="turn the reward source shadow off"):
        Shadow(open_moe(tmp_path))


def test_an_moe_that_routes_by_task_needs_to_know_whose_experts_are_whose(moe: Moe) -> None:
    with pytest.raises(CheckpointError, match="does not say which expert was trained for which task"):
        Shadow(moe)


@pytest.mark.parametrize("how", ["cut", "overwritten", "gone"])
def test_a_checkpoint_that_has_changed_is_not_read(moe: Moe, tmp_path: Path, how: str) -> None:
    folder = Path(shutil.copytree(moe.path, tmp_path / "model"))
    copy = open_moe(folder)
    shadow, inputs = Shadow(copy, experts_of=range(8)), Engine(moe).encode(["the film is good"])
    shadow.labels(inputs, np.array([6]), 14)
    file = folder / "model.safetensors"
    if how == "cut":
        os.truncate(file, 4096)  # reading past its end would end the process
    elif how == "overwritten":
        file.write_bytes(bytes(file.stat().st_size))
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match="has changed since it was opened; put the old file back"):
        shadow.labels(inputs, np.array([6]), 14)
    with pytest.raises(CheckpointError, match="has changed"):
        shadow.agreement(inputs, [5], 6)
