"""Permuted experts are found, put back exactly, and told apart from related and from unrelated ones."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tanbr.merge
from moe.tiny import build, logits
from tanbr.cli.merging import app
from tanbr.errors import DataError, InputError
from tanbr.merge.align import align, by_unit, expert_tensor, orders, permuted, unit_count
from tanbr.merge.inspect import glance, inspect, loss_line
from tanbr.moe.layer import TaskRouting, route
from tanbr.moe.writing import NewTensor, write_json, write_tensors


def rewritten(moe, folder, change):
    """Copy a checkpoint with every expert's tensors changed: change(site, part, expert, own, first) → tensor."""
    values = {name: moe.checkpoint.tensor(name).clone() for name in moe.checkpoint.specs}
    for site in moe.sites:
        for part in site.parts:
            for expert, (name, start) in enumerate(part.blocks):
                size = int(np.prod(part.shape))
                block = values[name].view(-1)[start : start + size].view(part.shape)
                first = expert_tensor(moe, part, 0)
                block.copy_(change(site, part, expert, block.clone(), first))
    folder.mkdir()
    write_json(folder / "config.json", moe.checkpoint.config)
    specs = moe.checkpoint.specs.values()
    write_tensors(folder, [NewTensor(s.name, s.dtype, s.shape) for s in specs], [values[s.name] for s in specs])
    return tanbr.merge.open(folder)


def order_of(site, expert):
    return np.random.default_rng([expert, len(site.name)]).permutation(unit_count(site))


def shuffled(site, part, expert, own, first):
    """Every expert is the first, its hidden units in another order."""
    if expert == 0 or part.unit_axis is None:
        return first
    return permuted(first, part.unit_axis, unit_count(site), order_of(site, expert))


def related(site, part, expert, own, first):
    return first + 0.1 * own


@pytest.fixture(params=["bert_moe", "t5_moe", "nllb-moe", "qwen2_moe", "granitemoe", "deepseek_v3", "gpt_oss"])
def moe(request, tmp_path):
    build(request.param).save_pretrained(tmp_path / "moe")
    return tanbr.merge.open(tmp_path / "moe")


def test_a_permuted_copy_is_recovered_exactly(moe, tmp_path) -> None:
    mixed = rewritten(moe, tmp_path / "mixed", shuffled)
    for site in mixed.sites:
        for expert, order in enumerate(orders(mixed, site)):
            assert np.array_equal(order, np.argsort(order_of(site, expert)) if expert else np.arange(unit_count(site)))
    aligned = tanbr.merge.open(align(mixed, tmp_path / "aligned"))
    for site in aligned.sites:
        for part in site.parts:
            for expert in range(1, 4):
                assert torch.equal(expert_tensor(aligned, part, expert), expert_tensor(aligned, part, 0))


@pytest.mark.parametrize("model_type", ["bert_moe", "t5_moe", "mixtral", "gpt_oss"])
def test_alignment_preserves_the_function(model_type, tmp_path) -> None:
    model = build(model_type)
    model.save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    align(moe, tmp_path / "aligned", reference=2)
    again = type(model).from_pretrained(tmp_path / "aligned")
    for live in (model, again):
        if model_type in {"bert_moe", "t5_moe"}:
            route(live, TaskRouting(torch.tensor([1, 3])))
    torch.testing.assert_close(logits(again), logits(model), rtol=1e-4, atol=1e-4)
    aligned = tanbr.merge.open(tmp_path / "aligned")
    before, after = (expert_tensor(which, which.sites[0].part("down"), 0) for which in (moe, aligned))
    assert not torch.equal(before, after)


def test_alignment_by_activations(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    mixed = rewritten(tanbr.merge.open(tmp_path / "moe"), tmp_path / "mixed", shuffled)
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))

    def activations(site, expert):
        weight, bias = (expert_tensor(mixed, site.part(role), expert) for role in ("up", "up_bias"))
        return torch.nn.functional.gelu(inputs @ weight.T + bias).T

    site = mixed.sites[1]
    for expert, order in enumerate(orders(mixed, site, activations=activations)):
        assert expert == 0 or np.array_equal(order, np.argsort(order_of(site, expert)))


def test_units_of_interleaved_tensors_stay_whole() -> None:
    tensor = torch.arange(12.0).view(1, 2, 6)  # (1, D, 2F), gate and up interleaved
    rows = by_unit(tensor, 2, 3)
    assert rows.tolist() == [[0, 6, 1, 7], [2, 8, 3, 9], [4, 10, 5, 11]]
    swapped = permuted(tensor, 2, 3, np.array([2, 0, 1]))
    assert swapped[0, 0].tolist() == [4, 5, 0, 1, 2, 3]


def test_a_reference_that_is_no_expert(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    with pytest.raises(InputError, match="reference must be an expert"):
        align(tanbr.merge.open(tmp_path / "moe"), tmp_path / "out", reference=4)


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
    assert all(site.mismatch == 0 for site in kin.sites)


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


def batches():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 64, (2, 9), generator=generator)
    return [{"input_ids": ids, "labels": torch.tensor([0, 1])}]


def test_loss_on_the_line(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    moe = tanbr.merge.open(tmp_path / "moe")
    line = loss_line(moe, 1, 3, batches())
    with torch.no_grad():
        ends = [float(moe.dense(np.eye(4)[k])(**batches()[0]).loss) for k in (1, 3)]
    assert (line.loss[0], line.loss[-1]) == pytest.approx(ends)
    with pytest.raises(InputError, match="needs labels"):
        loss_line(moe, 0, 1, [{"input_ids": batches()[0]["input_ids"]}])


def test_align_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    result = CliRunner().invoke(app, ["align", str(tmp_path / "moe"), str(tmp_path / "out"), "--reference", "1"])
    assert result.exit_code == 0, result.output
    assert tanbr.merge.open(tmp_path / "out").num_experts == 4


def test_inspect_command(tmp_path) -> None:
    build("bert_moe").save_pretrained(tmp_path / "moe")
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"input_ids": [5, 6, 7], "labels": 1}) + "\n")
    arguments = ["inspect", str(tmp_path / "moe"), "--data", str(data), "--out", str(tmp_path / "report")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "do not merge" in result.output
    assert max(map(len, result.output.splitlines())) <= 80  # and nothing is cut to fit
    assert "…" not in result.output
    for name in ("site", "distance", "cosine", "in place", "match", "moved", "bert.encoder.layer.1"):
        assert name in result.output
    report = json.loads((tmp_path / "report" / "inspect.json").read_text())
    assert report["verdict"] == "do not merge"
    assert len(report["lines"]) == 3
    assert (tmp_path / "report" / "inspect.png").stat().st_size > 1000
    data.write_text('{"input_ids": "words"}\n')
    assert isinstance(CliRunner().invoke(app, arguments).exception, DataError)
