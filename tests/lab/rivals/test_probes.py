from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from moe.tiny import build
from tanbr.errors import DataError
from tanbr.lab.rivals.probes import probes_of
from tanbr.lab.tasks import tiny
from tanbr.merge import open as open_moe
from tanbr.moe.embedded import path
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row, Task

ROWS = {task.name: tiny.generate(task.name, 3 + place, seed=0) for place, task in enumerate(tiny.TASKS)}


def test_an_experts_rows_are_those_of_its_own_task_wherever_the_task_stands() -> None:
    own = [7, 6, 5, 4, 3, 2, 1, 0]
    probes = probes_of(open_moe(Path(path())), ROWS, space=LabelSpace(tiny.TASKS), own=own, batch=64)
    assert [len(batches[0].inputs["input_ids"]) for batches in probes] == [10, 9, 8, 7, 6, 5, 4, 3]


@pytest.mark.parametrize("own", [(), (0, 1), (0, 1, 2, 3, 4, 5, 6, 8)])
def test_a_map_that_does_not_fit_is_refused(own: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="each of the 8 tasks needs its own expert"):
        probes_of(open_moe(Path(path())), ROWS, space=LabelSpace(tiny.TASKS), own=own)


def save_tokenizer(folder: Path) -> None:
    words = {word: i for i, word in enumerate(["<pad>", "<unk>", "good", "bad", "film", "yes", "no"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = partial(PreTrainedTokenizerFast, model_input_names=["input_ids", "attention_mask"], model_max_length=32)
    fast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>").save_pretrained(folder)


def test_the_expectation_runs_over_a_tasks_labels(tmp_path: Path) -> None:
    tasks = (Task("taste", ("accuracy",), ("bad", "good")), Task("grade", ("pearson",), scale=(0.0, 5.0)))
    build("bert_moe", num_experts=2, num_labels=3).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    rows = {"taste": [Row("taste", "good film", 1.0)] * 3, "grade": [Row("grade", ("film", "bad film"), 2.0)]}
    grade, taste = probes_of(open_moe(tmp_path), rows, space=LabelSpace(tasks), own=[1, 0], batch=2)
    assert [len(probe.inputs["input_ids"]) for probe in taste] == [2, 1]
    assert len(grade) == 1
    logits = torch.tensor([[0.3, -0.5, 0.7]], requires_grad=True)
    for probe, others, column in ((taste[0], [0.3, -0.5], 0), (grade[0], [0.7, 0.0], 2)):
        slopes = [torch.autograd.grad(s.sum(), logits, retain_graph=True)[0] for s in probe.surprise(logits)]
        p = torch.tensor(others).softmax(dim=0)[0]  # E (∂ log p)² of a yes-or-no answer is p(1 − p)
        assert len(slopes) == 2
        assert sum(float(slope[0, column] ** 2) for slope in slopes) == pytest.approx(float(p * (1 - p)))


def test_a_model_that_writes_reads_the_text_and_its_answer_so_far() -> None:
    moe = open_moe(path("t5"))
    own = [7, 6, 5, 4, 3, 2, 1, 0]
    probes = probes_of(moe, ROWS, space=LabelSpace(tiny.TASKS), own=own, batch=64)
    assert [len(batches[0].inputs["input_ids"]) for batches in probes] == [10, 9, 8, 7, 6, 5, 4, 3]
    inputs = probes[0][0].inputs
    labels, before = inputs["labels"], inputs["decoder_input_ids"]
    real = labels[:, :-1] != -100
    assert torch.equal(before[:, 1:][real], labels[:, :-1][real])
    assert (before >= 0).all()
    logits = torch.randn(*labels.shape, moe.config["vocab_size"], generator=torch.Generator().manual_seed(0))
    chances = logits.double().log_softmax(-1).gather(2, labels.clamp_min(0)[..., None]).squeeze(2)
    expected = -(chances * (labels != -100)).sum(dim=1)
    # float32 against float64: some vocabulary-size roundings a token
    bound = 2 * labels.shape[1] * moe.config["vocab_size"] * torch.finfo(torch.float32).eps
    torch.testing.assert_close(probes[0][0].surprise(logits)[0].double(), expected, rtol=0, atol=bound)
