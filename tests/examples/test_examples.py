"""The examples run, and come out as they say."""

import importlib
import importlib.util
import json
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

from tanbr.router.contract import check_router

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_router_alone_comes_near_the_best() -> None:
    assert runpy.run_path(str(EXAMPLES / "router_alone.py"))["main"]() > 0.9


def test_a_router_of_ten_lines_keeps_the_contract_and_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    own = importlib.import_module("own_router")
    check_router(own.BestSoFar)
    earned = own.main(6)
    assert earned["own_router:BestSoFar"] > 0.3
    assert earned.keys() == {"own_router:BestSoFar", "tanbr", "average"}


def test_what_is_exported_answers_as_what_was_merged_in_memory() -> None:
    # Both hold the very same weights; only the order of float32 sums may differ, some hundred of them per logit.
    assert runpy.run_path(str(EXAMPLES / "merge_and_export.py"))["main"]() < 1e-4


def test_one_adapter_answers_as_the_adapters_merged_into_the_base() -> None:
    pytest.importorskip("peft")
    # The same sums in another order: a logit of this model is some hundred float32 sums of numbers near 1.
    assert runpy.run_path(str(EXAMPLES / "lora_adapters.py"))["main"]() < 1e-4


def test_the_notebook_finds_a_peak_above_the_even_blend() -> None:
    mpl.use("agg")
    notebook = json.loads((EXAMPLES / "triangle.ipynb").read_text())
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    even = float(names["measure"]([1 / 3] * 3) @ names["mix"])
    assert names["path"][-5:, 3].mean() > even
    assert names["worth"].max() > even


def test_a_server_is_asked_by_openais_client_and_learns_what_it_is_told() -> None:
    assert runpy.run_path(str(EXAMPLES / "serve_and_feed_back.py"))["main"](4) == 4 + 3


def test_without_ray_replicas_are_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    assert runpy.run_path(str(EXAMPLES / "ray_replicas.py"))["main"]() is None
    assert capsys.readouterr().out == 'Ray is not installed: pip install "tanbr[ray]"\n'


@pytest.mark.filterwarnings("default")  # the warnings are Ray's own
@pytest.mark.timeout(600)
def test_replicas_on_ray_answer_with_one_version() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "tanbr[ray]"')
    assert len(runpy.run_path(str(EXAMPLES / "ray_replicas.py"))["main"]()) == 1
