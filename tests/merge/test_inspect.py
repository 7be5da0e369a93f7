"""Permuted experts are told apart from related and from unrelated ones."""

import numpy as np
import pytest
import torch

import tanbr.merge
from merge.permuted_experts import related, rewritten, shuffled
from moe.tiny import build
from tanbr.merge.inspect import glance, inspect


@pytest.fixture(params=["bert_moe", "t5_moe", "nllb-moe", "qwen2_moe", "granitemoe", "deepseek_v3", "gpt_oss"])
def moe(request, tmp_path):
    build(request.param).save_pretrained(tmp_path / "moe")
    return tanbr.merge.open(tmp_path / "moe")


def test_verdicts(moe, tmp_path) -> None:
    unrelated = inspect(moe)
    assert unrelated.verdict == glance(moe)[0] == "do not merge"
    mixed = rewritten(moe, tmp_path / "mixed", shuffled)
    assert inspect(mixed).verdict == glance(mixed)[0] == "align first"
    close = rewritten(moe, tmp_path / "kin", related)
    kin = inspect(close)
    assert kin.verdict == glance(close)[0] == "merge"
    off = ~np.eye(4, dtype=bool)
    assert all(site.cosine[off].min() > 0.9 and site.distance[off].max() < 0.4 for site in kin.sites)
    assert all(site.units.moved == 0 for site in kin.sites)


def test_cosines_are_those_of_the_weights(tmp_path) -> None:
    model = build("t5_moe")
    model.save_pretrained(tmp_path / "moe")
    report = inspect(tanbr.merge.open(tmp_path / "moe"))
    ffn = model.encoder.block[1].layer[1].DenseReluDense
    flat = torch.cat([ffn.wi.weight.flatten(1), ffn.wo.weight.flatten(1)], dim=1).detach().double()
    site = next(site for site in report.sites if site.site == "encoder.block.1.layer.1")
    bound = flat.shape[1] * torch.finfo(torch.float32).eps  # of a sum of so many products, in any order
    np.testing.assert_allclose(site.cosine, _cosines(flat), atol=bound)
    np.testing.assert_allclose(site.task_cosine, _cosines(flat - flat.mean(0)), atol=4 * bound)


def _cosines(rows):
    rows = rows / rows.norm(dim=1, keepdim=True)
    return (rows @ rows.T).numpy()
