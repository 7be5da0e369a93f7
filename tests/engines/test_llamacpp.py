import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engines.asking import BLENDS, answers, before, right, serving, serving_first, transformers_answers
from engines.fake_engine import FakeLlamaCpp
from serve.web.live import wait_for
from tanbr.engines.connection import EngineLost, EngineRefused
from tanbr.engines.llamacpp import LlamaCpp, Turns
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe


@pytest.fixture
def llama(adapters: Moe) -> Iterator[FakeLlamaCpp]:
    with FakeLlamaCpp(adapters.path, adapters.source.names).running() as engine:
        yield engine


def test_a_blend_is_its_weights_as_scales_and_every_prompt_names_them(llama: FakeLlamaCpp, adapters: Moe) -> None:
    with before(llama, adapters) as backend:
        engine = serving(backend, adapters)
        for blend in (*BLENDS, [0.4, 0.3, 0.2, 0.1]):
            engine.swap(blend)
            llama.asked.clear()
            assert answers(engine) == transformers_answers(adapters, blend)
            expected = [weight * (2.0 if number == 1 else 1.0) for number, weight in enumerate(blend)]
            assert {tuple(one["scale"] for one in asked["lora"]) for asked in llama.asked} == {tuple(expected)}


@pytest.mark.parametrize("blend", [[0.2, 0.1, 0.1, 0.1, 0.5], [0.0, 0.0, 0.0, 0.0, 1.0]])
def test_the_bases_share_is_nothing_to_load(llama: FakeLlamaCpp, adapters: Moe, blend: list[float]) -> None:
    moe = open_moe(adapters.path, experts=adapters.source.names, base=True)
    with before(llama, moe) as backend:
        engine = serving(backend, moe)
        engine.swap(blend)
        assert answers(engine) == transformers_answers(moe, blend)


def test_an_engine_whose_adapters_are_others_answers_nobody(llama: FakeLlamaCpp, adapters: Moe) -> None:
    with serving_first(llama, adapters) as engine:
        right_ones = llama.experts
        llama.experts = right_ones[::-1]
        with pytest.raises(
            EngineLost, match=r"the engine has base.gguf, .*, and had base.gguf, .*; start it as before"
        ):
            answers(engine)
        llama.experts = right_ones
        wait_for(lambda: engine.available)
        assert right(engine, adapters)


def test_equal_scales_go_together_and_those_that_waited_longest_come_next() -> None:
    async def played() -> list[str]:
        turns, went, gates = (
            Turns(),
            list[str](),
            {name: asyncio.Event() for name in ("a1", "a2", "b1", "b2", "a3", "c1")},
        )

        async def ask(name: str) -> None:
            async with turns.of(name[0]):
                went.append(name)
                await gates[name].wait()

        tasks = {}
        for name in gates:
            tasks[name] = asyncio.create_task(ask(name))
            await asyncio.sleep(0)  # until it goes, or waits
        assert went == ["a1", "a2"]
        tasks["b2"].cancel()  # a client leaves the queue, …
        for name in ("a1", "a2", "b1", "a3", "c1"):
            gates[name].set()
            if name == "a2":
                tasks["a2"].cancel()  # … or while it is answered
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        async with asyncio.timeout(5), turns.of("d"):
            went.append("d")
        return went

    assert asyncio.run(played()) == ["a1", "a2", "b1", "a3", "c1", "d"]


def test_an_engine_with_other_adapters_is_refused(llama: FakeLlamaCpp, adapters: Moe) -> None:
    llama.experts = llama.experts[:3]
    said = "has 3 adapters, and 4 experts are blended; start llama-server with --lora"
    with pytest.raises(EngineRefused, match=said), before(llama, adapters):
        pass


@pytest.mark.parametrize(
    ("changes", "says"), [({"alpha_pattern": {"q_proj": 9}}, "one scale"), ({"bias": "all"}, "biases")]
)
def test_what_no_scale_expresses_is_refused(changes: dict[str, Any], says: str, adapters: Moe, tmp_path: Path) -> None:
    first, second = (Path(name) for name in adapters.source.names[:2])
    shutil.copytree(first, tmp_path / "odd")
    file = tmp_path / "odd" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(InputError, match=says):
        LlamaCpp(open_moe(adapters.path, experts=[tmp_path / "odd", second]), "http://127.0.0.1:9")
    part = open_moe(adapters.path, experts=adapters.source.names, blend_only="ffn")
    with pytest.raises(InputError, match="adds an adapter whole"):
        LlamaCpp(part, "http://127.0.0.1:9")


def test_what_is_no_llama_server_is_said(llama: FakeLlamaCpp, adapters: Moe) -> None:
    llama.routes["/props"] = lambda *_: [3]
    with closing(LlamaCpp(adapters, llama.url)) as engine:
        for ask in (engine.served, engine.held):
            with pytest.raises(EngineRefused, match="does not answer as llama-server does"):
                engine.call(ask())
