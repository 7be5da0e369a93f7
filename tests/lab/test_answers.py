import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tanbr.errors import CheckpointError, InputError
from tanbr.lab.answers import Answers, Blended, Tagged, model_for
from tanbr.lab.classifier import Classifier
from tanbr.lab.tasks import glue, tiny
from tanbr.merge import Moe
from tanbr.moe.layer import TaskRouting, route
from tanbr.moe.text import TextEncoder
from tanbr.tasks.metrics import LabelSpace

ROWS = [row for task in tiny.TASKS for row in tiny.generate(task.name, 5, seed=7, split="test")]
TEXTS = [row.text for row in ROWS]
SOME = np.array([0.3, 0, 0, 0.2, 0, 0.5, 0, 0])


def test_no_text_is_answered_twice_under_a_blend(moe: Moe, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(Classifier(moe))
    asked: list[int] = []
    answer = answers.model.answers
    monkeypatch.setattr(answers.model, "answers", lambda texts: asked.append(len(texts)) or answer(texts))
    one, other = Blended(answers), Blended(answers)
    one.swap(SOME)
    other.swap(SOME)
    first = one.answers(TEXTS[:8] + TEXTS[:4])
    np.testing.assert_array_equal(first[8:], first[:4])
    np.testing.assert_array_equal(other.answers(TEXTS[:8]), first[:8])
    assert other.swap(np.eye(8)[0]) == 2
    assert np.abs(np.array(other.answers(TEXTS[:2])) - first[:2]).max() > 1e-3
    np.testing.assert_array_equal(one.answers(TEXTS[:8]), first[:8])
    one.answers(TEXTS[:10])
    assert asked == [8, 2, 2]


def test_a_bad_blend_is_refused_and_the_old_one_goes_on(moe: Moe) -> None:
    server = Blended(Answers(Classifier(moe)))
    server.swap(SOME)
    before = server.answers(TEXTS[:2])
    with pytest.raises(InputError, match="sum to 1"):
        server.swap(np.full(8, 0.2))
    np.testing.assert_array_equal(server.answers(TEXTS[:2]), before)


def test_tagged_answers_are_those_of_the_unmerged_model(moe: Moe) -> None:
    tasks = [task.name for task in tiny.TASKS]
    tags = [tasks.index(row.task) for row in ROWS]
    unmerged = AutoModelForSequenceClassification.from_pretrained(moe.path).eval().double()
    route(unmerged, TaskRouting(torch.tensor(tags)))
    with torch.inference_mode():
        wanted = unmerged(**TextEncoder.of(moe.path, vocab_size=10**6)(TEXTS)).logits.numpy()
    model = Classifier(moe)
    model.model.double()
    server = Tagged(Answers(model), dict(zip(TEXTS, tags, strict=True)), np.eye(8))
    np.testing.assert_allclose(server.answers(TEXTS), wanted, rtol=0, atol=1e-9)  # float64, sums in another order


def test_a_head_for_other_labels_is_refused(moe: Moe) -> None:
    model_for(moe, LabelSpace(tiny.TASKS))
    with pytest.raises(CheckpointError, match="the data's labels are 0, 1, entailment"):
        model_for(moe, LabelSpace(glue.TASKS))
