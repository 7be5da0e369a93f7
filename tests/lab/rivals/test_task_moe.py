import numpy as np
import pytest
import torch

from elsewhere import elsewhere
from moe.tiny import K, build
from tanbr.errors import CheckpointError, InputError
from tanbr.lab.rivals.task_moe import TaggedMoe, TaskExperts
from tanbr.lab.tasks import tiny
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.moe.layer import routed
from tanbr.tasks.metrics import LabelSpace

WORTH = [[0.5, 0.9, 0.1, 0.2], [0.3, 0.2, 0.8, 0.4], [0.6, 0.1, 0.2, 0.7]]  # (V, K)


def test_a_tasks_own_expert_and_the_most_helpful_others() -> None:
    assert TaskExperts.most_helpful(WORTH, per_task=1).chosen.tolist() == [[1], [2], [3]]
    assert TaskExperts.most_helpful(WORTH, per_task=2).chosen.tolist() == [[1, 0], [2, 3], [3, 0]]
    own = TaskExperts.most_helpful(WORTH, per_task=3, own=[0, 1, 2])
    assert own.chosen.tolist() == [[0, 1, 3], [1, 2, 3], [2, 3, 0]]
    np.testing.assert_allclose(own.blends[0], [1 / 3, 1 / 3, 0, 1 / 3])


def test_what_does_not_fit_is_refused() -> None:
    for worth, per_task, own in ((WORTH, 0, None), (WORTH, 5, None), ([[np.nan]], 1, None), (WORTH[0], 1, None)):
        with pytest.raises(InputError, match="worth must be"):
            TaskExperts.most_helpful(worth, per_task=per_task, own=own)
    for own in ([0, 1], [0, 1, 4]):
        with pytest.raises(InputError, match="own must name"):
            TaskExperts.most_helpful(WORTH, per_task=1, own=own)


@pytest.mark.parametrize("family", ["bert_moe", "t5_moe"])
def test_outputs_side_by_side_and_merged_weights(family) -> None:
    model = build(family).double()  # what a CPU rounds in float32 is no matter here
    experts = TaskExperts.most_helpful(WORTH, per_task=2)
    site = model.bert.encoder.layer[0] if family == "bert_moe" else model.encoder.block[0].layer[-1].DenseReluDense
    ffn = site.feed_forward_chunk if family == "bert_moe" else site
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0)).double()
    tasks = torch.tensor([2, 0])

    def with_experts(row: int, chosen: list[int], *, merged: bool) -> torch.Tensor:
        one = TaskExperts(np.array([chosen]), K)
        with routed(model, (one.merged if merged else one.side_by_side)(torch.tensor([0]))):
            return ffn(x[row : row + 1])

    with torch.no_grad():
        for merged in (True, False):
            with routed(model, (experts.merged if merged else experts.side_by_side)(tasks)):
                got = ffn(x)
            expected = torch.cat([with_experts(0, [3, 0], merged=merged), with_experts(1, [1, 0], merged=merged)])
            torch.testing.assert_close(got, expected)
        if family == "t5_moe":  # where the site is the FFN alone: the mean of the outputs, by hand
            halves = (with_experts(0, [3], merged=False) + with_experts(0, [0], merged=False)) / 2
            torch.testing.assert_close(with_experts(0, [3, 0], merged=False), halves)
            assert not torch.allclose(with_experts(0, [3, 0], merged=True), halves)


def test_the_embedded_model_told_its_tasks(moe: Moe) -> None:
    rows = [row for task in tiny.TASKS for row in tiny.generate(task.name, 4, seed=3)]
    texts, tags = [row.text for row in rows], [list(tiny.BY_NAME).index(row.task) for row in rows]
    alone = TaskExperts.most_helpful(np.eye(8), per_task=1)
    aside, merged = TaggedMoe(moe, alone, batch=8), TaggedMoe(moe, alone, merged=True)
    aside.model.double()
    merged.model.double()
    answers = aside.logits(texts, tags)
    np.testing.assert_allclose(merged.logits(texts, tags), answers, rtol=0, atol=1e-9)  # float64
    pair = [i for i, tag in enumerate(tags) if tag == 5]
    dense = moe.dense(np.eye(8)[5]).double()
    with torch.inference_mode():
        wanted = dense(**aside.encode([texts[i] for i in pair])).logits.numpy()
    np.testing.assert_allclose(answers[pair], wanted, rtol=0, atol=1e-9)
    space = LabelSpace(tiny.TASKS)
    assert space.rewards(rows, space.answers(rows, answers)).mean() > 0.75


def test_a_model_without_task_routing_is_refused(tmp_path) -> None:
    build("mixtral").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="tags need one of"):
        TaggedMoe(open_moe(tmp_path), TaskExperts.most_helpful(np.eye(K), per_task=1))


def test_tags_are_answered_the_same_elsewhere(moe: Moe) -> None:
    texts = [tiny.generate(task.name, 1, seed=1)[0].text for task in tiny.TASKS]
    experts = TaskExperts.most_helpful(np.eye(8), per_task=2)

    def logits(device: str, *, merged: bool) -> list[list[float]]:
        return TaggedMoe(open_moe(moe.path, device=device), experts, merged=merged).logits(texts, range(8)).tolist()

    with elsewhere() as device:
        for merged in (False, True):
            assert logits(str(device), merged=merged) == logits("cpu", merged=merged)
