"""Methods by name: found in their folder, given settings, refused with a sentence; and what holds for every one."""

from typing import Annotated

import pytest
import torch
from pydantic import Field
from torch import Tensor

import tanbr
from moe.tiny import build
from tanbr.errors import ConfigError
from tanbr.merge.methods.method import merge_method


@merge_method("scaled-mean")
def scaled_mean(rows: Tensor, weights: Tensor, *, gain: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """Of a plain function: the weighted mean, times a gain."""
    return gain * (weights * rows).sum(dim=0)


PLACE = f"{__name__}:scaled_mean"


@pytest.mark.parametrize("model_type", ["bert_moe", "deepseek_v3", "gpt_oss"])  # regions, folds, other layouts
def test_a_plain_function_is_a_method(model_type, tmp_path) -> None:
    build(model_type).save_pretrained(tmp_path / "moe")
    chosen, plain = (tanbr.open(tmp_path / "moe", method=method) for method in (f"{PLACE}:gain=2", "average"))
    assert str(chosen.method) == "scaled-mean:gain=2.0"
    mean = dict(plain.tensors([0.5, 0.3, 0.2, 0.0], changing=True))
    alike = {piece.target for piece in plain.plan.pieces if piece.weights is not None}  # beside a shared expert
    for name, tensor in chosen.tensors([0.5, 0.3, 0.2, 0.0], changing=True):
        if name not in alike:
            torch.testing.assert_close(tensor, 2 * mean[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("avrage", "unknown merge method 'avrage'; did you mean 'average'"),
        ("", "unknown merge method ''; known: average"),
        ("average:weight=1", r"no setting 'weight' \(its settings: none\)"),
        (f"{PLACE}:gain=0", "gain: Input should be greater than 0"),
        (f"{PLACE}:gain=much", "gain: Input should be a valid number"),
        ("average:experts=1", "no setting 'experts'"),
        ("average:gain=1:gain=2", "must be a name"),
        ("nowhere.at:All", "cannot be imported"),
        ("numpy:array", "must be a class derived from"),
    ],
)
def test_wrong_names_and_settings_are_explained(related, text, says) -> None:
    with pytest.raises(ConfigError, match=says):
        tanbr.open(related, method=text)
