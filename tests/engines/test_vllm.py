import json
import shutil
from contextlib import closing
from pathlib import Path

import httpx2
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from engines.asking import BLENDS, answers, before, right, serving, serving_first, transformers_answers
from engines.fake_engine import FakeVllm
from engines.tiny_adapters import RANK
from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.engines.dialect import Merge
from tanbr.engines.vllm import CHANGING, VllmWhole
from tanbr.errors import ConfigError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe


def folders(moe: Moe) -> list[Path]:
    return [Path(name) for name in moe.source.names]


def test_every_request_names_its_version_and_others_adapters_are_left_alone(lora: FakeVllm, adapters: Moe) -> None:
    httpx2.post(
        f"{lora.url}/v1/load_lora_adapter", json={"lora_name": "theirs", "lora_path": str(folders(adapters)[0])}
    )
    with before(lora, adapters) as backend:
        engine = serving(backend, adapters)
        names = set()
        for blend in BLENDS:
            engine.swap(blend)
            lora.asked.clear()
            assert answers(engine) == transformers_answers(adapters, blend)
            (name,) = {one["model"] for one in lora.asked}
            names.add(name)
            assert {"theirs", name} <= set(lora.adapters)
        assert len(names) == len(BLENDS) == lora.loads - 1
        assert backend.size.own_bytes < backend.size.nbytes
    assert set(lora.adapters) == {"theirs"}


def test_what_is_read_from_a_folder_that_goes_is_unloaded_first(lora: FakeVllm, adapters: Moe) -> None:
    with serving_first(lora, adapters) as engine:
        assert right(engine, adapters)
        (folder,) = [folder for folder, _ in lora.adapters.values()]
        assert Path(folder).exists()
    assert not Path(folder).exists()
    assert lora.adapters == {}


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("takes_adapters", False, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ("most_rank", 0, "LoRA is not enabled"),
        ("most_rank", RANK - 1, f"LoRA rank {RANK} is greater than max_lora_rank {RANK - 1}"),
        ("most_adapters", 1, "runs 1 adapters at once, and a panel of 2 is to be served; start it with --max-loras 3"),
    ],
)
def test_a_panel_that_it_was_not_started_for_is_one_sentence_before_anything_is_loaded(
    setting: str, value: int, says: str, lora: FakeVllm, adapters: Moe
) -> None:
    setattr(lora, setting, value)
    with pytest.raises(EngineRefused) as error, before(lora, adapters, models=2):
        pass
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert not lora.loads


@pytest.fixture
def odd(adapters: Moe, tmp_path: Path, request: pytest.FixtureRequest) -> Moe:
    """Experts whose blends are no adapter that vLLM takes."""
    first, second, *_ = folders(adapters)
    if request.param == "checkpoint":
        return open_moe(adapters.path, experts=[first, adapters.export(BLENDS[1], tmp_path / "whole")])
    if request.param == "method":
        return open_moe(adapters.path, experts=[first, second], method="ties")
    shutil.copytree(second, tmp_path / "head")
    file = tmp_path / "head" / "adapter_model.safetensors"
    head = load_file(adapters.path / "model.safetensors")["lm_head.weight"]
    save_file(load_file(file) | {"base_model.model.lm_head.weight": head + 0.1}, file)
    settings = json.loads((tmp_path / "head" / "adapter_config.json").read_text())
    (tmp_path / "head" / "adapter_config.json").write_text(json.dumps(settings | {"modules_to_save": ["lm_head"]}))
    return open_moe(adapters.path, experts=[first, tmp_path / "head"])


@pytest.mark.parametrize(
    ("odd", "says"),
    [("checkpoint", "only a blend of adapters"), ("method", "ties is no sum of adapters"), ("head", "modules_to_save")],
    indirect=["odd"],
)
def test_experts_that_are_no_one_adapter_are_sent_as_whole_models(
    odd: Moe, says: str, lora: FakeVllm, caplog: pytest.LogCaptureFixture
) -> None:
    lora.dev_mode = True
    with caplog.at_level("INFO"), before(lora, odd) as backend:
        engine = serving(backend, odd)
        engine.swap([0.5, 0.5])
        assert lora.adapters == {}
        assert answers(engine) == transformers_answers(odd, [0.5, 0.5])
    assert says in caplog.text


def test_adapters_are_not_added_to_another_base(adapters: Moe, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(adapters.path, base)
    for change in (0.0, 0.001):
        tensors = load_file(base / "model.safetensors")
        tensors["model.norm.weight"] = tensors["model.norm.weight"] + change
        save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
        engine = FakeVllm(base)
        engine.takes_adapters = True
        with engine.running():
            if not change:  # the same, elsewhere
                before(engine, adapters).__enter__().close()
                continue
            with pytest.raises(ConfigError, match=r"whose model.norm.weight is not .*; start it with that base"):
                before(engine, adapters).__enter__()


def test_weights_have_no_version_while_they_change(vllm: FakeVllm, mixtral: Moe, dense: Path) -> None:
    seen: list[tuple[str, bool]] = []
    load = vllm.load

    def watched(folder: str) -> None:
        seen.append((vllm.label, vllm.paused))
        load(folder)

    vllm.load = watched  # type: ignore[method-assign]
    one, two = (Merge(name, np.zeros(4), dense) for name in ("one", "two"))
    with closing(VllmWhole(mixtral, vllm.url)) as engine:
        engine.call(engine.load(one))
        assert seen == [(CHANGING, True)]
        assert (engine.call(engine.held()), vllm.paused) == (["one"], False)
        vllm.refuses = "no"
        with pytest.raises(EngineLost, match="500: no"):
            engine.call(engine.load(two))
        assert (engine.call(engine.held()), vllm.paused) == ([CHANGING], False)
        vllm.refuses, vllm.busy = "", True
        with pytest.raises(EngineRefused, match="did not forget"):
            engine.call(engine.load(two))
        assert (engine.call(engine.held()), vllm.paused) == ([CHANGING], False)
