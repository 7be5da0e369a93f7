from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from serve.text_model import write, written
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.merge.int8 import Int8Linear
from tanbr.serve.engine import Engine, sentences


def maps(engine: Engine) -> tuple[set[str], set[str]]:
    """Names of the linear maps in int8, and of those in float."""
    modules = dict(engine.live.backend.model.named_modules())  # type: ignore[attr-defined]
    return (
        {name for name, module in modules.items() if isinstance(module, Int8Linear)},
        {name for name, module in modules.items() if isinstance(module, nn.Linear)},
    )


def test_the_embedded_model_can_be_served_in_int8_as_the_help_says(moe: Moe) -> None:
    engine = Engine(moe, backend="int8")
    loss = engine.live.backend.loss
    assert loss is not None
    assert 0.98 <= loss.agreement <= 1
    assert loss.positions == len(sentences())
    assert 0 < loss.relative_error < 0.1
    int8, _ = maps(engine)
    assert len(int8) >= 2 * len(moe.sites)


def test_an_int8_twin_has_its_own_ffns_and_shares_the_other_maps(moe: Moe) -> None:
    one = Engine(moe, backend="int8", least_agreement=0.0).live.backend
    models = [backend.model for backend in (one, one.twin(moe))]  # type: ignore[attr-defined]
    mine, others = ({id(m) for m in model.modules() if isinstance(m, Int8Linear)} for model in models)
    # query, key, value, output, two of the FFN; not the last layer's attention, pooler and head: they cost nothing
    assert len(mine) == 6 * len(moe.sites) - 4
    assert len(mine - others) == 2 * len(moe.sites)
    assert {t.data_ptr() for t in models[0].parameters()} == {t.data_ptr() for t in models[1].parameters()}


def test_only_the_ffns_are_put_in_int8_where_all_maps_together_answer_otherwise(
    moe: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rough(self: Int8Linear, x: torch.Tensor) -> torch.Tensor:  # int8 maps of the attention answer nonsense
        out: torch.Tensor = forward(self, x)
        return -out if out.shape[-1] == x.shape[-1] else out

    forward = Int8Linear.forward
    monkeypatch.setattr(Int8Linear, "forward", rough)
    engine = Engine(moe, backend="int8")
    int8, kept = maps(engine)
    assert int8 == {name for name in int8 if "intermediate" in name or name.endswith(".output.dense")}
    assert len(int8) == 2 * len(moe.sites)
    assert len(kept) == 4 * len(moe.sites) + 2


def test_t5_is_measured_on_what_it_writes(tmp_path: Path) -> None:
    moe = open_moe(write("t5_moe", tmp_path / "model"))
    engine = Engine(moe, backend="int8", least_agreement=0.0, probes=["w1 w2", "w3 w4 w5", "w6"])
    loss = engine.live.backend.loss
    assert loss is not None
    assert 3 <= loss.positions <= 3 * 17  # the first token of each, and one more after each that it wrote
    engine.swap(np.eye(4)[2])
    assert len(written(engine, ["w1"], max_tokens=3)) == 1


def test_a_family_whose_ffns_are_no_linear_maps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no linear map; serve this model in fp32"):
        Engine(open_moe(write("olmoe", tmp_path / "model")), backend="int8")


def test_a_float_twin_shares_everything_but_the_ffns(moe: Moe) -> None:
    one = Engine(moe).live.backend
    models = [backend.model for backend in (one, one.twin(moe))]  # type: ignore[attr-defined]
    first, second = (dict(model.named_parameters()) for model in models)
    own = {name for name in first if first[name].data_ptr() != second[name].data_ptr()}
    assert own == {piece.target for piece in moe.plan.blended}
    assert one.size.own_bytes == sum(4 * first[name].numel() for name in own)
    buffers = sum(tensor.numel() for tensor in models[0].buffers())
    assert one.size.parameters == sum(tensor.numel() for tensor in first.values()) + buffers
    assert one.loss is None
