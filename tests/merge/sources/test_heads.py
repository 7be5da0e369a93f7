"""Heads with different labels joined into one: every column is what its holders say."""

import pytest
import torch

import tanbr
from merge.sources.tiny_dense import heads
from moe.tiny import load_plain
from tanbr.errors import CheckpointError

EPS = torch.finfo(torch.float32).eps
LABELS = [("bad", "good"), ("good", "fair", "bad"), ("fair", "awful")]
UNION = ("bad", "good", "fair", "awful")


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return heads(tmp_path_factory.mktemp("heads"), LABELS)


def test_an_expert_alone_answers_its_own_labels_as_it_did(experts) -> None:
    moe = tanbr.open(experts[0], experts=experts[1])
    inputs = {"input_ids": torch.randint(0, 64, (4, 9), generator=torch.Generator().manual_seed(0))}
    for k, folder in enumerate(experts[1]):
        joined = moe.dense(torch.eye(3)[k].tolist())
        columns = [UNION.index(label) for label in LABELS[k]]
        with torch.no_grad():
            theirs, mine = load_plain(folder)(**inputs).logits, joined(**inputs).logits[:, columns]
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_a_head_with_one_label_twice_is_refused(tmp_path) -> None:
    base, folders = heads(tmp_path, [("no", "no"), ("yes", "no")])
    with pytest.raises(CheckpointError, match="names a label twice"):
        tanbr.open(base, experts=folders)
