import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from engines.asking import BLENDS, PROMPTS, answers, before, right, serving, serving_first, transformers_answers
from engines.fake_engine import FakeVllm
from serve.web.live import wait_for
from tanbr.engines import connection, remote
from tanbr.engines.connection import EngineLost
from tanbr.errors import CheckpointError
from tanbr.merge import Moe
from tanbr.merge import open as open_moe
from tanbr.serve.decode import NotFinite, Step
from tanbr.serve.sampling import Sampling


@pytest.fixture(params=["vllm", "lora"])
def fake(request: pytest.FixtureRequest) -> FakeVllm:
    """An engine that loads whole models, and one that loads adapters."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def moe(fake: FakeVllm, request: pytest.FixtureRequest) -> Moe:
    """What is merged for it."""
    return request.getfixturevalue("adapters" if fake.takes_adapters else "mixtral")


def test_every_swap_answers_as_transformers_does_though_the_engine_remembers_prefixes(fake: FakeVllm, moe: Moe) -> None:
    with before(fake, moe) as backend:
        engine = serving(backend, moe)
        for number in range(10):
            blend = BLENDS[number % len(BLENDS)]
            engine.swap(blend)
            assert fake.version == backend.label_of(np.array(blend))
            assert answers(engine, backend) == transformers_answers(moe, blend)
            assert fake.cache  # the next swap has something to forget
        assert fake.loads == 10


def test_a_look_costs_no_load_and_what_is_held_is_written_once(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as (engine, backend):
        staged = engine.prepare(BLENDS[1])
        assert engine.sane("w1", staged)
        assert fake.loads == 1
        assert right(engine, backend, moe)
        engine.commit(staged)
        assert fake.loads == 2
        engine.swap(BLENDS[0])  # back to what is still there
        assert right(engine, backend, moe)


def test_an_engine_that_writes_more_than_it_was_asked_for_is_not_believed(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as (engine, backend):
        fake.extra = 1_000
        heard: list[Step] = []
        inputs = engine.padded(["w1 w2 w3"])[0]
        with pytest.raises(EngineLost, match="more than the 3 tokens it was asked for"):
            backend.generate(inputs, limits=[3], on_step=lambda step: heard.append(step) or ())  # type: ignore[func-returns-value]
        assert sum(len(step.added) for step in heard) <= 3
        fake.extra = 0
        wait_for(lambda: backend.available)  # it is looked for, and loaded again
        assert right(engine, backend, moe)


def test_a_load_that_hangs_is_given_up_and_what_answered_before_comes_back(
    vllm: FakeVllm, mixtral: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOAD_SECONDS", 0.3)
    with serving_first(vllm, mixtral) as (engine, backend):
        vllm.hangs_loading.set()
        with pytest.raises(CheckpointError, match=r"cannot be loaded: .* did not answer /collective_rpc in time"):
            engine.swap(BLENDS[1])
        vllm.hangs_loading.clear()
        wait_for(lambda: backend.available)
        assert right(engine, backend, mixtral)


def test_a_load_that_hangs_keeps_nobody_from_leaving(
    vllm: FakeVllm, mixtral: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CLOSE_SECONDS", 0.1)
    with serving_first(vllm, mixtral) as (engine, backend), ThreadPoolExecutor() as pool:
        vllm.hangs_loading.set()
        swapping = pool.submit(engine.swap, BLENDS[1])
        wait_for(lambda: vllm.calls.count("/collective_rpc") == 2)
        backend.close()
        assert isinstance(swapping.exception(), CheckpointError)


def test_tokens_are_heard_as_they_come_and_a_row_that_is_given_up_is_closed(vllm: FakeVllm, mixtral: Moe) -> None:
    with serving_first(vllm, mixtral) as (engine, backend):
        vllm.slow.set()
        heard: list[Step] = []

        def on_step(step: Step) -> set[int]:
            heard.append(step)
            if {row for one in heard for row in one.added} != {0, 1, 2}:
                return set()
            if vllm.abandoned == 2:
                vllm.slow.clear()
            return {0, 2}

        done = backend.generate(engine.padded(PROMPTS)[0], limits=[7] * 3, on_step=on_step)
        assert done[0] is done[2] is None
        assert done[1] is not None
        assert done[1].tokens == transformers_answers(mixtral, BLENDS[0], PROMPTS[1:2], limit=7)[0]
        assert [step.added[1] for step in heard if 1 in step.added] == list(done[1].tokens)


def test_how_words_are_drawn_is_passed_on_row_by_row(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as (engine, backend):
        fake.asked.clear()
        how = [None, Sampling(0.7, 0.9, -5), Sampling(1.5, 1.0, 2**62)]
        heard: list[Step] = []
        done = backend.generate(
            engine.padded(PROMPTS)[0], limits=[3, 4, 5], on_step=lambda step: heard.append(step) or (), sampling=how
        )
    said = sorted((one["max_tokens"], one["temperature"], one["top_p"], one.get("seed")) for one in fake.asked)
    assert said == [(3, 0, 1, None), (4, 0.7, 0.9, -5), (5, 1.5, 1.0, 2**62)]
    for row, written_ in enumerate(done):
        assert written_ is not None
        chances = [step.chances[row] for step in heard if row in step.added]
        assert len(chances) == len(written_.tokens)
        assert all(0 < chance <= 1 for chance in chances)


def test_several_threads_ask_at_once(vllm: FakeVllm, mixtral: Moe) -> None:
    with serving_first(vllm, mixtral) as (engine, backend):
        expected = transformers_answers(mixtral, BLENDS[0])
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda _: answers(engine, backend), range(12))) == [expected] * 12


def test_an_engine_that_comes_back_has_what_answered_last(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as (engine, backend):
        fake.kill()
        with pytest.raises(EngineLost):
            answers(engine, backend)
        assert not engine.available
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            engine.swap(BLENDS[1])
        assert engine.faults() == ()  # nothing that a restart would mend
        fake.start()
        assert fake.version == "default"
        wait_for(lambda: engine.available)
        assert fake.version == backend.label_of(np.array(BLENDS[0]))
        assert right(engine, backend, moe)


@pytest.mark.parametrize("dies", [False, True])
def test_a_load_that_the_engine_refuses_or_dies_of_leaves_the_old_version(dies: bool, fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as (engine, backend):
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
        wait_for(lambda: engine.available)
        assert engine.live.version == 1
        assert right(engine, backend, moe)


def test_a_merge_that_answers_with_nan_is_taken_back(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as (engine, backend):
        load = fake.load

        def bad_then_good(*what: str) -> None:
            fake.nan = fake.loads == 1
            load(*what)

        fake.load = bad_then_good
        with pytest.raises(CheckpointError, match="NaN"):
            engine.swap(BLENDS[1])
        assert engine.live.version == 1
        assert engine.available
        assert right(engine, backend, moe)
        fake.broken = True
        fake.cache.clear()
        with pytest.raises(NotFinite):
            answers(engine, backend)
        assert not engine.sane("w1", engine.live)


@pytest.mark.parametrize("restarted", [True, False])
def test_nobody_hears_a_token_of_an_engine_that_was_restarted_or_given_other_weights_unseen(
    restarted: bool, fake: FakeVllm, moe: Moe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "LOOK_SECONDS", 1000.0)  # it is seen when it is asked
    with serving_first(fake, moe) as (engine, backend):
        if restarted:
            fake.kill()
            fake.start()
        else:  # somebody else pushes a blend
            with before(fake, moe) as other:
                other.merge(moe, moe.check(BLENDS[1]))
        heard: list[Step] = []

        def on_step(step: Step) -> tuple[int, ...]:
            heard.append(step)
            return ()

        with pytest.raises(EngineLost, match=r"instead of|lost|no adapter"):
            backend.generate(engine.padded(PROMPTS)[0], limits=[7] * 3, on_step=on_step)
        assert not any(step.added or step.ended for step in heard)
        wait_for(lambda: engine.available)
        assert fake.version == backend.label_of(np.array(BLENDS[0]))
        assert right(engine, backend, moe)


def test_another_model_that_comes_back_is_given_nothing(fake: FakeVllm, moe: Moe) -> None:
    with serving_first(fake, moe) as (engine, backend):
        fake.kill()
        fake.dtype = "bfloat16"
        fake.start()
        with pytest.raises(EngineLost):
            answers(engine, backend)
        asked = threading.Event()
        wait_for(lambda: fake.calls.count("/server_info") > 3 or asked.wait(0.01))
        assert not engine.available
        assert fake.version == "default"


def test_labels_name_checkpoint_method_and_blend(vllm: FakeVllm, mixtral: Moe, tmp_path: Path) -> None:
    shutil.copytree(mixtral.path, tmp_path / "other")
    file = tmp_path / "other" / "model.safetensors"
    save_file({name: tensor + 0.01 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    names = set()
    for moe in (mixtral, open_moe(mixtral.path, method="ties"), open_moe(tmp_path / "other")):
        with before(vllm, moe) as backend:
            names |= {backend.label_of(np.array(blend)) for blend in BLENDS}
    assert len(names) == 3 * len(BLENDS)
