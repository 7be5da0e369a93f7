from pathlib import Path

import numpy as np
import pytest
import torch

from moe.tiny import build
from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.layer import TaskRouting, route
from tanbr.serve.engine import Engine
from tanbr.serve.shadow import Shadow
from tanbr.tasks import tiny

ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 4, seed=7, split="test")]


def test_it_answers_as_the_whole_moe_does_with_nothing_but_views_of_the_file(moe: Moe) -> None:
    from tanbr.moe.families.bert import BertMoeForSequenceClassification

    shadow, engine = Shadow(moe), Engine(moe)
    file, _ = moe.checkpoint.files[0].typed(torch.float32)
    held = {parameter.untyped_storage().data_ptr() for parameter in shadow._model.parameters()}
    assert held == {file.untyped_storage().data_ptr()}
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
    shadow = Shadow(open_moe(tmp_path))
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
