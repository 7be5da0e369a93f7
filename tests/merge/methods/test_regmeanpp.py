"""RegMean++: what an expert sees behind merged layers, against a model put together by hand."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from merge.methods.test_regression import some_probes
from moe.tiny import K
from tanbr.errors import CheckpointError, OutputError
from tanbr.lab.rivals.regmean import measure
from tanbr.merge import open as open_moe
from tanbr.merge.gram_matrices import SHRINKAGE


@pytest.fixture(scope="module")
def folder(related: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("regmeanpp") / "moe"
    shutil.copytree(related, path)
    for merged in (False, True):
        measure(open_moe(path), some_probes(), rows=60, merged=merged)
    return path


def layer(number: int, part: str) -> str:
    return f"bert.encoder.layer.{number}.{part}.dense"


def test_the_first_layers_see_what_they_see_alone(folder: Path) -> None:
    alone, merged = (open_moe(folder, method=name).method for name in ("regression", "regmeanpp"))
    first = {file.path.parent.name: file for file in (*alone.files, *merged.files)}
    assert set(first) == {"grams", "grams-merged"}
    even, plain = (open_moe(folder, method=name).dense().state_dict() for name in ("regmeanpp", "regression"))
    for part in ("intermediate", "output"):  # nothing is merged before the first FFN
        name = f"{layer(0, part)}.weight"
        assert torch.equal(even[name], plain[name])
    assert not torch.equal(even[f"{layer(1, 'output')}.weight"], plain[f"{layer(1, 'output')}.weight"])


def test_the_second_ffn_sees_the_first_one_merged(folder: Path) -> None:
    stored = open_moe(folder, method="regmeanpp")
    values = stored.method.files[0]
    matrices = {spec.name: spec for spec in values.specs}
    expert = 2
    model = open_moe(folder).dense(np.eye(K)[expert])
    first = open_moe(folder, method="regression").dense().state_dict()  # evenly merged by regression
    with torch.no_grad():
        for name, value in first.items():
            if "encoder.layer.0." in name:
                model.get_parameter(name).copy_(value)
    seen: list[torch.Tensor] = []
    model.get_submodule(layer(1, "intermediate")).register_forward_hook(lambda _, args, __: seen.append(args[0]))
    with torch.no_grad():
        model(**some_probes()[expert][0].inputs)
    x = seen[0].flatten(0, 1).double()
    gram = x.T @ x / len(x)
    expected = SHRINKAGE * gram + (1 - SHRINKAGE) * gram.diagonal().diag()
    spec = matrices[f"{layer(1, 'intermediate')}.{expert}.left"]
    flat, lead = values.typed(spec.dtype)
    start = (spec.start - lead) // 4
    found = flat[start : start + spec.numel].view(spec.shape).double()
    # a mean over m tokens in float32: at most m roundings of what is added up
    bound = len(x) * torch.finfo(torch.float32).eps * float(x.square().mean(dim=0).max())
    assert float((found - expected).abs().max()) <= bound
    alone = open_moe(folder, method="regression").method.files[0]
    flat_alone, _ = alone.typed(spec.dtype)
    own = next(one for one in alone.specs if one.name == spec.name)
    different = flat_alone[(own.start - lead) // 4 :][: spec.numel].view(spec.shape).double()
    assert float((different - expected).abs().max()) > 10 * bound  # or the comparison above says nothing


def test_it_says_how_to_measure_and_measures_once(folder: Path, related: Path) -> None:
    with pytest.raises(CheckpointError, match=r"merging by regmeanpp needs: .*`tanbr grams CHECKPOINT --merged`"):
        open_moe(related, method="regmeanpp")
    with pytest.raises(OutputError, match="grams-merged is there already"):
        measure(open_moe(folder), some_probes(), rows=60, merged=True)
