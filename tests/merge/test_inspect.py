"""Related experts are told apart from unrelated ones."""

import numpy as np
import pytest

import tanbr.merge
from tanbr.merge.inspect import glance, inspect
from tanbr.moe.writing import write_json, write_tensors


def near_the_first(moe, folder):
    """Copy a checkpoint with experts near its first one."""
    values = {name: moe.checkpoint.tensor(name).clone() for name in moe.checkpoint.specs}
    for part in (part for site in moe.sites for part in site.parts):
        size = int(np.prod(part.shape))
        first, *others = (values[name].view(-1)[start : start + size] for name, start in part.blocks)
        for other in others:
            other.mul_(0.1).add_(first)
    folder.mkdir()
    write_json(folder / "config.json", moe.checkpoint.config)
    write_tensors(folder, list(moe.checkpoint.specs.values()), list(values.values()))
    return tanbr.merge.open(folder)


@pytest.mark.parametrize(
    "moe", ["bert_moe", "t5_moe", "nllb-moe", "qwen2_moe", "granitemoe", "deepseek_v3", "gpt_oss"], indirect=True
)
def test_verdicts(moe, tmp_path) -> None:
    assert inspect(moe).verdict == glance(moe)[0] == "do not merge"
    close = near_the_first(moe, tmp_path / "kin")
    kin = inspect(close)
    assert kin.verdict == glance(close)[0] == "merge"
    off = ~np.eye(4, dtype=bool)
    assert all(site.cosine[off].min() > 0.9 and site.distance[off].max() < 0.4 for site in kin.sites)
