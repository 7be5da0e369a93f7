import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import JSONResponse, RedirectResponse, Response

from engines.asking import (
    BLENDS,
    PROMPTS,
    answers,
    before,
    relayed,
    right,
    serving,
    serving_first,
    transformers_answers,
)
from engines.fake_engine import FakeVllm
from serve.web.live import wait_for
from tanbr.engines import connection, remote
from tanbr.engines import vllm as vllm_dialect
from tanbr.engines.connection import EngineLost
from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.serve.decode import NotFinite
from tanbr.serve.engine import Engine
from tanbr.serve.records import EngineAnswer


@pytest.fixture(params=["vllm", "lora"])
def fake(request: pytest.FixtureRequest) -> FakeVllm:
    """An engine that loads whole models, and one that loads adapters."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def moe(fake: FakeVllm, request: pytest.FixtureRequest) -> Moe:
    """What is merged for it."""
    return request.getfixturevalue("adapters" if fake.takes_adapters else "mixtral")


def held(fake: FakeVllm) -> set[str]:
    """What the engine has of ours."""
    return set(fake.adapters) if fake.takes_adapters else {fake.label}


def label(engine: Engine, place: int = 0) -> str:
    """What an engine calls a blend that answers."""
    return str(engine.panel.models[place].backend.wanted.label)  # type: ignore[attr-defined]


def test_every_swap_answers_as_transformers_does_though_the_engine_remembers_prefixes(fake: FakeVllm, moe: Moe) -> None:
    with before(fake, moe) as backend:
        engine = serving(backend, moe)
        for number in range(10):
            blend = BLENDS[number % len(BLENDS)]
            engine.swap(blend)
            assert label(engine) in held(fake)
            assert answers(engine) == transformers_answers(moe, blend)
            assert fake.cache  # the next swap has something to forget
        assert fake.loads == 10


def test_a_look_costs_no_load_and_what_is_held_is_had_back(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as engine:
        staged = engine.prepare(BLENDS[1])
        assert engine.sane("w1", staged)
        assert fake.loads == 1 + fake.takes_adapters  # an adapter is loaded beside what answers
        assert right(engine, moe)
        engine.commit(staged)
        assert fake.loads == 2
        engine.swap(BLENDS[0])
        assert fake.loads == 2 + (not fake.takes_adapters)
        assert right(engine, moe)


def test_what_answers_is_merged_again_and_what_answered_before_it_too(vllm: FakeVllm, mixtral: Moe) -> None:
    with before(vllm, mixtral) as backend:
        for blend in (BLENDS[0], BLENDS[1], BLENDS[1], BLENDS[0]):  # as after a check in place that failed
            backend.merge(mixtral, mixtral.check(blend))
            assert backend.available
        assert answers(serving(backend, mixtral)) == transformers_answers(mixtral, BLENDS[0])


def test_a_load_that_hangs_is_given_up_and_what_answered_before_comes_back(
    vllm: FakeVllm, mixtral: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOAD_SECONDS", 0.3)
    with serving_first(vllm, mixtral) as engine:
        vllm.hangs_loading.set()
        with pytest.raises(CheckpointError, match=r"cannot be loaded: .* did not answer /collective_rpc in time"):
            engine.swap(BLENDS[1])
        vllm.hangs_loading.clear()
        wait_for(lambda: engine.available)
        assert right(engine, mixtral)


@pytest.mark.parametrize("hangs", ["/collective_rpc", "/v1/unload_lora_adapter"])
def test_an_engine_that_hangs_keeps_nobody_from_leaving(
    hangs: str, vllm: FakeVllm, lora: FakeVllm, mixtral: Moe, adapters: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(vllm_dialect, "LOAD_SECONDS", 1000.0)
    loads, asked = hangs == "/collective_rpc", threading.Event()
    fake, moe = (vllm, mixtral) if loads else (lora, adapters)

    async def hang(*_: Any) -> Response:
        asked.set()
        await asyncio.sleep(1000)
        return Response()

    with serving_first(fake, moe) as engine, ThreadPoolExecutor() as pool:
        fake.routes[hangs] = hang
        swapping = pool.submit(engine.swap, BLENDS[1]) if loads else None
        assert swapping is None or asked.wait(60)
        engine.close()
        assert asked.is_set()
        assert swapping is None or isinstance(swapping.exception(), CheckpointError)


def test_events_are_heard_as_they_come_and_a_request_that_is_given_up_is_closed(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as engine:
        fake.slow.set()
        heard: list[Any] = []
        asked = {"prompt": PROMPTS[0], "max_tokens": 7, "stream": True}
        answering = engine.live.backend.relay("/v1/completions", asked, heard.append)
        wait_for(lambda: len(heard) == 1)
        answering.cancel()
        wait_for(lambda: fake.abandoned == 1)
        with pytest.raises(CancelledError):
            answering.result()
        fake.slow.clear()
        assert right(engine, moe)


@pytest.mark.parametrize("odd", [float("nan"), "\ud800"])
def test_what_json_hardly_knows_is_the_engines_to_judge_and_loses_it_for_nobody(
    odd: Any, lora: FakeVllm, adapters: Moe
) -> None:
    with serving_first(lora, adapters) as engine:
        lora.asked.clear()
        relayed(engine, prompt="w1", max_tokens=1, beyond=odd)
        assert [repr(one["beyond"]) for one in lora.asked] == [repr(odd)]
        assert engine.available


@pytest.mark.parametrize("status", [400, 503])
def test_what_an_engine_refuses_is_the_clients_to_read_and_nobody_elses(status: int, fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as engine:
        route = fake.routes["/v1/completions"]
        body = {"error": {"message": "no such tool", "code": status, "param": "tools"}}
        fake.routes["/v1/completions"] = lambda *_: JSONResponse(body, status)
        with pytest.raises(EngineAnswer, match="no such tool") as refused:
            answers(engine)
        assert refused.value.status == status
        assert engine.available
        fake.routes["/v1/completions"] = route
        assert right(engine, moe)


@pytest.mark.parametrize(
    "said",
    [
        RedirectResponse("http://127.0.0.1:9/"),
        JSONResponse({"error": "who are you"}, 401),
        Response("<html>"),
        JSONResponse([]),
        JSONResponse({"choices": [{"index": 0, "finish_reason": "stop", "text": "x"}], "model": "another"}),
    ],
    ids=["redirect", "key", "garbage", "no answer", "another model"],
)
def test_what_no_engine_says_loses_it_until_it_is_one_again(
    said: Response, lora: FakeVllm, adapters: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_first(lora, adapters) as engine:
        route = lora.routes["/v1/completions"]
        lora.routes["/v1/completions"] = lambda *_: said
        with pytest.raises(EngineLost):
            answers(engine)
        lora.routes["/v1/completions"] = route
        wait_for(lambda: engine.available)
        assert right(engine, adapters)


def test_an_engine_that_comes_back_has_what_answered_last(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as engine:
        fake.kill()
        with pytest.raises(EngineLost):
            answers(engine)
        assert not engine.available
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            engine.swap(BLENDS[1])
        assert not engine.fault  # nothing that a restart would mend
        fake.start()
        assert held(fake) <= {"default"}
        wait_for(lambda: engine.available)
        assert held(fake) == {label(engine)}
        assert right(engine, moe)


@pytest.mark.parametrize("dies", [False, True])
def test_a_load_that_the_engine_refuses_or_dies_of_leaves_the_old_version(dies: bool, fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as engine:
        fake.dies_loading, fake.refuses = dies, "no such tensor"
        if not fake.adapters:
            fake.model = moe.dense(BLENDS[1])  # found out half-way
        fake.cache.clear()
        with pytest.raises(CheckpointError, match="cannot be loaded" if dies else "no such tensor"):
            engine.swap(BLENDS[1])
        if dies:
            fake.kill()
        fake.dies_loading, fake.refuses = False, ""
        if dies:
            fake.start()
        wait_for(lambda: engine.available and label(engine) in held(fake))
        assert engine.live.version == 1
        assert right(engine, moe)


def test_a_merge_that_answers_with_nan_is_taken_back(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as engine:
        load = fake.load

        def bad_then_good(*what: str) -> None:
            fake.nan = fake.loads == 1
            load(*what)

        fake.load = bad_then_good  # type: ignore[method-assign]
        with pytest.raises(CheckpointError, match="NaN"):
            engine.swap(BLENDS[1])
        fake.broken = False  # the fake has one set of numbers for all adapters
        assert engine.live.version == 1
        wait_for(lambda: engine.available)
        assert right(engine, moe)
        fake.broken = True
        fake.cache.clear()
        with pytest.raises(NotFinite):
            relayed(engine, prompt="w1", max_tokens=2, logprobs=1)


@pytest.mark.parametrize("restarted", [True, False])
def test_nobody_hears_a_token_of_an_engine_that_was_restarted_or_given_other_weights_unseen(
    restarted: bool, fake: FakeVllm, moe: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "LOOK_SECONDS", 1000.0)  # it is seen when it is asked
    with serving_first(fake, moe) as engine:
        if restarted:
            fake.kill()
            fake.start()
        elif fake.takes_adapters:  # somebody else unloads what answers
            fake.adapters.clear()
        else:  # or pushes a blend
            with before(fake, moe) as other:
                other.merge(moe, moe.check(BLENDS[1]))
        heard: list[Any] = []
        asked = {"prompt": PROMPTS[0], "max_tokens": 7, "stream": True}
        with pytest.raises(EngineLost, match=r"instead of|lost|has no"):
            engine.live.backend.relay("/v1/completions", asked, heard.append).result(60)
        assert heard == []
        wait_for(lambda: engine.available)
        assert held(fake) == {label(engine)}
        assert right(engine, moe)


def test_another_model_that_comes_back_is_given_nothing(vllm: FakeVllm, mixtral: Moe) -> None:
    with serving_first(vllm, mixtral) as engine:
        vllm.kill()
        vllm.dtype = "bfloat16"
        vllm.start()
        with pytest.raises(EngineLost):
            answers(engine)
        wait_for(lambda: vllm.calls.count("/server_info") > 3)
        assert not engine.available
        assert held(vllm) == {"default"}


# --- panels -----------------------------------------------------------------------------------------------------------


def test_a_set_of_adapters_is_loaded_beside_the_one_that_answers_and_the_one_before_is_kept(
    lora: FakeVllm, adapters: Moe
) -> None:
    with before(lora, adapters, models=2) as backend:
        engine = serving(backend, adapters, models=2)
        sets = [(BLENDS[0], BLENDS[1]), (BLENDS[2], BLENDS[3]), ([0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0]), BLENDS[:2]]
        for number, blends in enumerate(sets):
            staged = [engine.prepare(blend) for blend in blends]
            assert number == 0 or [one.version for one in engine.panel.models] != [one.version for one in staged]
            engine.commit(*staged)
            for place, blend in enumerate(blends):
                assert answers(engine, place=place) == transformers_answers(adapters, blend)
            assert len(lora.adapters) == min(2 * (number + 1), 6)  # what answers, what did, and what will be replaced
        assert {label(engine, place) for place in (0, 1)} < held(lora)
        assert engine.pause_seconds < 1


def test_a_swap_waits_for_the_last_answer_of_what_it_replaces(lora: FakeVllm, adapters: Moe) -> None:
    with serving_first(lora, adapters) as engine, ThreadPoolExecutor() as pool:
        lora.slow.set()
        heard: list[Any] = []
        using = engine.using()
        live = using.__enter__()
        answering = live.backend.relay(
            "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 7, "stream": True}, heard.append
        )
        for blend in BLENDS[1:3]:  # both go on beside it
            engine.swap(blend)
        swapping = pool.submit(engine.swap, BLENDS[3])
        wait_for(lambda: heard)
        assert not swapping.done()
        lora.slow.clear()
        answering.result(60)
        using.__exit__(None, None, None)
        assert swapping.result(60) == 4
        assert [choice["token_ids"][0] for event in heard for choice in event["choices"]] == list(
            transformers_answers(adapters, BLENDS[0])[0]
        )


def test_whole_models_have_an_engine_each_and_one_more_is_a_spare(vllm: FakeVllm, mixtral: Moe, dense: Path) -> None:
    with FakeVllm(dense).running() as second, FakeVllm(dense).running() as third:
        with before(vllm, mixtral, second, third, models=2) as backend:
            engine = serving(backend, mixtral, models=2)
            for blends in (BLENDS[:2], BLENDS[2:], BLENDS[1:3]):
                engine.commit(*[engine.prepare(blend) for blend in blends])
                for place, blend in enumerate(blends):
                    assert answers(engine, place=place) == transformers_answers(mixtral, blend)
        with (
            before(vllm, mixtral) as backend,
            pytest.raises(CheckpointError, match="2 whole models need as many engines"),
        ):
            serving(backend, mixtral, models=2)
