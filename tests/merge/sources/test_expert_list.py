"""Experts that a file lists."""

import sys

import pytest
import torch
from typer.testing import CliRunner

import tanbr
from merge.sources.tiny_dense import family
from moe.tiny import load_plain
from tanbr.cli import app
from tanbr.errors import ConfigError, InputError, TanbrError

SHORT = 'base = "base"\nexperts = ["expert-0", "expert-1"]\n'
LONG = """
base = "base"
method = "ties:density=0.3"
blend_only = "ffn"
[[experts]]
path = "expert-0"
task = "one"
weight = 3
[[experts]]
path = "expert-1"
task = "two"
weight = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("listed")
    family(place, "BertForSequenceClassification")
    return place


def written(folder, text, name="experts.toml"):
    (folder / name).write_text(text)
    return folder / name


def test_a_short_list_is_experts_beside_the_file(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths are the file's, not the caller's
    listed = tanbr.open(written(folder, SHORT))
    named = tanbr.open(folder / "base", experts=[folder / "expert-0", folder / "expert-1"])
    assert listed.fingerprint == named.fingerprint
    assert listed.source.expert_tasks == listed.source.weights == ()


def test_a_long_list_says_method_tasks_and_blend(folder) -> None:
    moe = tanbr.open(written(folder, LONG))
    assert str(moe.method) == "ties:density=0.3"
    assert moe.source.expert_tasks == ("one", "two")
    assert moe.source.weights == (0.75, 0.25)
    assert all("query" not in piece.target for piece in moe.plan.blended)
    other = tanbr.open(written(folder, LONG), method="average", blend_only="all")  # arguments go before the file
    assert str(other.method) == "average"
    assert any("query" in piece.target for piece in other.plan.blended)


def test_the_base_may_be_listed_last_with_a_weight_of_its_own(folder) -> None:
    moe = tanbr.open(written(folder, LONG + "[[experts]]\nbase = true\nweight = 4\n"))
    assert moe.source.weights == (0.375, 0.125, 0.5)
    assert moe.num_experts == 3
    for asked, weights in ((False, (0.75, 0.25)), (True, (0.75, 0.25, 0.0))):  # the argument goes before the file
        assert tanbr.open(written(folder, LONG), base=asked).source.weights == weights


TWO = '[[experts]]\npath = "a"\n{}\n[[experts]]\npath = "c"\n'
WRONG = [
    ('base = "b"\n[[experts]]\nbase = true\n[[experts]]\npath = "a"\n', "base = true, last"),
    (LONG + '[[experts]]\nbase = true\ntask = "t"\n', "base = true, last"),
    ('base = "b"\nexperts = ["a", {}]\n', "an expert has a path"),
    ("", "base"),
    ('base = "base"\nexperts = ["a"]\n', "experts"),
    (SHORT + "bases = 1\n", "unknown key 'bases'; did you mean 'base'"),
    ('base = "b"\n' + TWO.format("wieght = 1"), "did you mean 'weight'"),
    ('base = "b"\n' + TWO.format("weight = -1"), "weight"),
    ('base = "b"\n' + TWO.format('task = "t"'), "of every expert or"),
    ("base =", "is not TOML"),
    ("base = " + "[" * 100_000, "nested too deeply"),
    (SHORT + f"weight = {'9' * 5_000}\n", "is not TOML"),
    (SHORT.replace("expert-0", "a" * 5_000), "cannot be the path"),
    (SHORT.replace('"base"', '"~nobody-here/x"'), "~nobody-here/x' cannot be"),
    (SHORT.replace("expert-0", r"a\u0000b"), "a.b is not a folder"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_list_is_refused_in_one_sentence(text, message, tmp_path) -> None:
    with pytest.raises(TanbrError, match=message) as refused:
        tanbr.open(written(tmp_path, text))
    assert len(str(refused.value)) < 1_000
    assert "\n" not in str(refused.value)


def test_a_list_does_not_import_what_it_names_as_its_method(folder, tmp_path, monkeypatch) -> None:
    (tmp_path / "trap_of_a_list.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"experts\.toml: .*--method") as refused:
        tanbr.open(written(folder, "method = 'trap_of_a_list:Kind'\n" + SHORT))
    assert "\n" not in str(refused.value)
    assert "trap_of_a_list" not in sys.modules


def test_a_list_that_is_not_there_and_experts_beside_a_list_are_refused(folder) -> None:
    with pytest.raises(ConfigError, match="cannot read the list"):
        tanbr.open(folder / "nowhere.toml")
    with pytest.raises(InputError, match="lists its experts"):
        tanbr.open(written(folder, SHORT), experts=["a"])


def test_the_commands_take_lists(folder, tmp_path) -> None:
    shown = CliRunner().invoke(app, ["inspect", str(written(folder, SHORT))])
    assert "came from the base" in shown.output.replace("\n", " ")
    refused = CliRunner().invoke(app, ["merge", str(written(folder, SHORT)), str(tmp_path / "out")])
    assert "a list of experts with their weights" in str(refused.exception)
    assert not (tmp_path / "out").exists()
    listed = written(folder, LONG.replace("ties:density=0.3", "average"))
    assert CliRunner().invoke(app, ["merge", str(listed), str(tmp_path / "out")]).exit_code == 0
    merged = dict(load_plain(tmp_path / "out").named_parameters())
    assert all(torch.equal(merged[name], tensor) for name, tensor in tanbr.open(listed).tensors([0.75, 0.25]))
