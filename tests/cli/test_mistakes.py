"""A mistake is one sentence and exit code 2, and leaves no file behind: every command, options and files."""

import sys
from pathlib import Path

import pytest

from cli.running import Mistake
from tanbr.moe import embedded

MODEL = str(embedded.path())
NO_ENGINE = "--engine vllm --engine-url http://127.0.0.1:9"
MISTAKES = {
    "demo --traffic chaotic": "unknown kind of traffic 'chaotic'; choose one of fixed",
    "demo --config bad.toml": "unknown key 'router.colour'",
    "demo --out file": "cannot write file/",
    "export out --state nowhere": "nowhere holds no state of a server",
    "serve --blend half": "options: serve.blend",
    "serve --blend 0.5,0.6 --port 0": "serve.blend: blend must be 8 numbers",
    "serve --config none.toml": "cannot read the configuration none.toml",
    "serve --slot-requests 0": "options: serve.slot_requests: Input should be greater than or equal to 1",
    "serve --host no.such.host.invalid": "cannot listen on no.such.host.invalid:8000",
    "serve --token-file none": "cannot read the token in none: No such file",
    "serve --backup copy --state nowhere": "nowhere holds no state of a server",
    "serve --replicas 2": "give --ray as well",
    f"serve --ray {NO_ENGINE}": "--ray and --engine do not go together",
    f"serve --port 0 --backend onnx {NO_ENGINE}": "leave --backend out",
    f"serve --port 0 {NO_ENGINE}": "vllm runs causal language models",
    "send a-text": "cannot reach http://127.0.0.1:9",
    "send": "there is no text to send",
    "traffic --data nowhere": "no GLUE folder at nowhere",
    "traffic --slots 1": "cannot reach http://127.0.0.1:9",
    "simulate --methods tambr": "did you mean 'tanbr'",
    "simulate --seeds one": "--seeds must be whole numbers",
    "simulate --models 0": "--models must be whole numbers from 1",
    "survey --blends 4": "a survey holds each of the 8 experts alone",
    "survey --grams regression": "--grams writes beside the experts",
    "pretrain --preset huge": "unknown preset 'huge'; choose one of tiny",
    "pretrain --preset minilm": "needs a dense checkpoint",
    "pretrain --preset tiny-t5 --tagged": "--tagged needs --from and --data",
    "finetune --router thompson": "unknown router 'thompson'; choose one of tanbr",
    "reproduce fig9": "unknown table or figure 'fig9'",
    "reproduce fig4 --scale small --model m": "fig4 at scale small needs data: --data names GLUE's folder",
    "reproduce fig2 --tagged": "fig2 with --tagged needs a T5-MoE that knows the names of tasks",
    "reproduce fig4 --model nowhere": "nowhere is not a folder; a checkpoint is a folder with config.json",
    "serve --port 0 --engine vllm": "--engine vllm needs --engine-url",
    "serve --port 0 --engine-url http://127.0.0.1:9": "--engine-url needs --engine",
    f"serve --port 0 --precision int8 {NO_ENGINE}": "leave --precision out",
    "send a-text --server no-url": "no-url",
    "reproduce fig4 --scale large": "unknown scale 'large'; choose one of tiny, small, paper",
    "config --section server": "no section 'server'; there are",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(mistake: Mistake, tmp_path: Path, arguments: str) -> None:
    (tmp_path / "bad.toml").write_text("[router]\ncolour = 'red'\n")
    (tmp_path / "file").write_text("keep me")
    assert MISTAKES[arguments] in mistake(*arguments.split())
    assert (tmp_path / "file").read_text() == "keep me"


@pytest.mark.parametrize("arguments", ["demo", "pretrain", "finetune", "survey", "simulate", "serve --port 0"])
def test_a_device_that_is_not_there(mistake: Mistake, arguments: str) -> None:
    said = mistake(*arguments.split(), "--device", "cuda:97")
    assert "device must be one that torch can use here (got 'cuda:97'" in said


def test_a_port_that_is_taken_is_found_before_the_model_is_loaded(mistake: Mistake, url: str) -> None:
    assert "Address already in use" in mistake("serve", "nowhere", "--port", url.rpartition(":")[2])


def test_without_ray_one_sentence_says_what_to_install(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("ray.", "tanbr.fleet.ray"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 'serving on Ray needs Ray Serve: pip install "tanbr[ray]"' in mistake("serve", "--ray")


def test_a_corrupt_embedded_model_is_named(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tanbr.moe.embedded._HERE", tmp_path)
    monkeypatch.setattr("tanbr.moe.embedded._FOLDERS", {"bert": ("broken", "tiny")})
    assert "lacks the embedded model" in mistake("demo")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "bert_moe"}')
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"\x00" * 64)
    assert "broken" in mistake("demo")
