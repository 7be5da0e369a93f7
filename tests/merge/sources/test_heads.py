"""Heads with different labels joined into one: every column is what its holders say."""

import pytest
import torch
from safetensors.torch import load_file

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


def reference(experts, blend, name):
    """Fill each expert's head up to the union, with the mean of the holders, in float64; then sum."""
    own = [load_file(folder / "model.safetensors")[name].double() for folder in experts]
    rows = []
    for label in UNION:
        held = {k: own[k][labels.index(label)] for k, labels in enumerate(LABELS) if label in labels}
        mean = torch.stack(list(held.values())).mean(dim=0)
        rows.append(sum(weight * held.get(k, mean) for k, weight in enumerate(blend)))
    return torch.stack(rows)


@pytest.mark.parametrize("blend", [[0.5, 0.3, 0.2], [1, 0, 0], [0, 0, 1]])
def test_columns_are_those_of_the_experts_that_have_the_label(experts, blend) -> None:
    moe = tanbr.open(experts[0], experts=experts[1])
    merged = dict(moe.tensors(blend))
    for name in ("classifier.weight", "classifier.bias"):
        expected = reference(experts[1], blend, name)
        assert merged[name].shape == expected.shape
        assert ((merged[name].double() - expected).abs() <= 16 * EPS * expected.abs().max()).all()


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
