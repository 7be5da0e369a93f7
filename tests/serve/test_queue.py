import threading
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from serve.queues import IDS, queue_of
from serve.serving import TEXTS
from serve.text_model import write
from tanbr.errors import InputError
from tanbr.merge import Moe
from tanbr.serve.engine import Engine, like_lengths
from tanbr.serve.panel import Answers, Broken, Message
from tanbr.serve.queue import Queue
from tanbr.serve.records import Answered, Generated, ServiceError, Stopping

Made = Callable[..., tuple[Queue, "SimpleQueue[Message]"]]


@pytest.fixture
def make(moe: Moe, tmp_path: Path) -> Iterator[Made]:
    """Start queues of the embedded model, or of a tiny model of a `family`, and stop them in the end.

    With `gather` a queue takes requests, but is yet to be started: what comes until then is one batch.
    """
    started: list[Queue] = []

    def made(
        family: str | None = None, *, gather: bool = False, **settings: Any
    ) -> tuple[Queue, "SimpleQueue[Message]"]:
        source = moe if family is None else write(family, tmp_path / family)
        one, queue = queue_of(source, **({"workers": 1} if gather else {}), **settings)
        started.append(one)
        if gather:
            one._running = True
        else:
            one.start()
        return one, queue

    yield made
    for one in started:
        one.stop(10)


def model_of(one: Queue) -> Any:
    return one.engine.live.backend.model  # type: ignore[attr-defined]


def endless(one: Queue) -> None:
    """Let a model that writes end nothing by itself."""
    model = model_of(one)
    model.generation_config.eos_token_id = model.config.eos_token_id = None


def test_what_it_says_of_its_answers_is_what_its_clients_hear(moe: Moe, make: Made) -> None:
    one, queue = make()
    answered = one.submit(TEXTS[:5]).result(30)
    said = queue.get_nowait()
    assert isinstance(said, Answers)
    assert (said.version, said.slot, said.texts) == (1, 7, tuple(TEXTS[:5]))
    assert answered.request_ids == tuple(IDS.show(raw) for raw in said.ids)
    np.testing.assert_array_equal(said.logits, answered.logits)
    assert answered.cut == ()
    one.engine.commit(one.engine.prepare(np.eye(8)[2]), slot=8)
    again = one.submit(TEXTS[:5]).result(30)
    said = queue.get_nowait()
    assert isinstance(said, Answers)
    assert (again.merge_version, said.version, said.slot) == (2, 2, 8)


@pytest.mark.parametrize("family", [None, "t5_moe"])
def test_it_is_said_before_a_client_can_hear_of_it(make: Made, family: str | None) -> None:
    one, queue = make(family)
    seen: list[bool] = []
    for _ in range(20):
        future: Any = one.submit(TEXTS[:2]) if family is None else one.generate(["w1", "w2"], max_tokens=2)
        heard = threading.Event()
        future.add_done_callback(lambda _, heard=heard: (seen.append(not queue.empty()), heard.set()))
        assert heard.wait(30)
        queue.get_nowait()
    assert all(seen)


def test_a_text_that_is_too_long_is_cut_and_its_neighbours_are_answered(make: Made) -> None:
    one, _ = make(max_length=4_000)  # more than the model has positions
    long = "the film is good " * 200
    asked = [one.submit([TEXTS[0]]), one.submit([long, TEXTS[1]]), one.submit([TEXTS[2]])]
    answers = [future.result(30) for future in asked]
    assert [answer.cut for answer in answers] == [(), (800 + 2 - 64, 0), ()]


def test_a_text_that_cannot_be_read_fails_alone(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = make(gather=True)
    futures = [one.submit([text]) for text in ("the film is good", "\ud800", "the plot is dull")]
    one.start()
    assert [future.exception(30) is None for future in futures] == [True, False, True]
    with pytest.raises(InputError, match="cannot be read"):
        futures[1].result(30)


def test_a_text_that_the_model_cannot_answer_fails_alone(make: Made) -> None:
    one, _ = make(gather=True)

    def stumble(_: Any, inputs: Any) -> None:  # the tokens of all texts of a batch, without padding
        if inputs[0].numel() > 30:
            raise RuntimeError("too many")

    handle = model_of(one).bert.embeddings.word_embeddings.register_forward_pre_hook(stumble)
    futures = [one.submit([text]) for text in (TEXTS[0], "the film is good " * 10, TEXTS[1])]
    one.start()
    assert [future.exception(30) is None for future in futures] == [True, False, True]
    with pytest.raises(ServiceError, match=r"the model failed .*too many"):
        futures[1].result(30)
    handle.remove()
    assert one.faults() == ()


@pytest.mark.parametrize(("family", "read"), [("t5_moe", 40), ("mixtral", 64)])
def test_prompts_and_answers_have_the_room_that_the_model_has(make: Made, family: str, read: int) -> None:
    one, _ = make(family, max_length=40 if family == "t5_moe" else None, max_tokens=1_000)
    assert one.room.answer == (1_000 if family == "t5_moe" else 63)
    assert make(family, max_length=40)[0].room.answer == (512 if family == "t5_moe" else 63)  # no setting: the model's
    with pytest.raises(InputError, match=rf"max_tokens must be 1..{one.room.answer} \(got 1001\); .* no more"):
        one.generate(["w1"], max_tokens=1_001)
    with pytest.raises(InputError, match="prompt 2 of 2 has"):
        one.generate(["w1", "w2 " * 70], max_tokens=2).result(30)
    words = 39 if family == "t5_moe" else 62  # T5's prompts end with a token of their own
    done = one.generate(["w2 " * words], max_tokens=2).result(30)
    assert (done.prompt_tokens, done.cut) == ((40,) if family == "t5_moe" else (62,), ())
    if family == "mixtral":
        endless(one)
        done = one.generate(["w2 " * 60]).result(30)  # as much as there is room for
        assert (done.completion_tokens, done.finish_reasons) == ((read - 60,), ("length",))


@pytest.mark.parametrize("family", ["t5_moe", "mixtral"])
def test_prompts_are_cut_on_the_left_if_that_is_wanted_and_it_is_said(make: Made, family: str) -> None:
    one, _ = make(family, too_long="cut", max_length=8)
    end = "w3 w4 w5 w6 w7 w8 w9"
    cut, short = one.generate([f"w1 w2 {end}", end], max_tokens=5).result(30), one.generate([end], max_tokens=5)
    kept = end if family == "t5_moe" else f"w2 {end}"
    assert cut.cut == ((2, 0) if family == "t5_moe" else (1, 0))
    assert cut.texts[0] == one.generate([kept], max_tokens=5).result(30).texts[0]
    assert cut.texts[1] == short.result(30).texts[0]


def test_a_cancelled_request_is_written_no_further_and_its_neighbours_are(make: Made) -> None:
    one, queue = make("t5_moe", max_tokens=400, gather=True)
    endless(one)
    heard: list[int] = []
    stop = 5

    def cancel_at(_: int, piece: str) -> None:
        heard.append(len(piece))
        if len(heard) == stop:
            assert cancelled.cancel()

    cancelled = one.generate(["w1 w2"], on_token=cancel_at)
    other = one.generate(["w1 w2"], max_tokens=50)
    one.start()
    assert other.result(60).completion_tokens == (50,)
    assert len(heard) == stop
    assert cancelled.cancelled()
    said = queue.get_nowait()
    assert isinstance(said, Answers)
    assert len(said.ids) == 1  # of what nobody waited for, nothing is said
    assert queue.empty()


def test_a_cancelled_request_frees_its_place_at_once_and_is_never_read(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = make(queue=4)
    reading, go_on = threading.Event(), threading.Event()
    texts: list[Any] = []
    read = Queue._encode

    def held(queue: Queue, jobs: Any, panel: Any) -> Any:
        texts.extend(text for job in jobs for text in job.texts)
        reading.set()
        assert go_on.wait(60)
        return read(queue, jobs, panel)

    monkeypatch.setattr(Queue, "_encode", held)
    first = one.submit(["first"])
    assert reading.wait(60)
    for _ in range(3):  # what waits to be read
        one.submit(["a", "b", "c"]).cancel()
        assert one.depth == 1
    first.cancel()  # what is being read
    last = one.submit(["last"])
    go_on.set()
    assert len(last.result(60).request_ids) == 1
    assert (texts, one.depth) == (["first", "last"], 0)


def test_a_short_answer_does_not_wait_for_a_long_one(make: Made) -> None:
    one, _ = make("t5_moe", max_tokens=100_000, gather=True)
    endless(one)
    long, short = one.generate(["w1"]), one.generate(["w2"], max_tokens=1)
    one.start()
    assert short.result(30).finish_reasons == ("length",)
    assert not long.done()
    long.cancel()


def test_a_client_whose_stream_fails_fails_alone(make: Made) -> None:
    one, _ = make("t5_moe", gather=True)
    endless(one)

    def gone(_: int, piece: str) -> None:
        raise ConnectionError(piece)

    broken, other = one.generate(["w1"], max_tokens=3, on_token=gone), one.generate(["w2"], max_tokens=3)
    one.start()
    with pytest.raises(ServiceError, match="could not be streamed"):
        broken.result(30)
    assert other.result(30).completion_tokens == (3,)


@pytest.mark.parametrize("family", [None, "t5_moe"])
def test_an_answer_that_cannot_be_told_fails_alone(
    make: Made, monkeypatch: pytest.MonkeyPatch, family: str | None
) -> None:
    one, _ = make(family)

    def ask() -> Any:
        return one.submit(TEXTS[:2]) if family is None else one.generate(["w1", "w2"], max_tokens=2)

    with monkeypatch.context() as patch:
        where: Any = IDS if family is None else type(one.engine.encode.tokenizer)
        patch.setattr(where, "issue" if family is None else "batch_decode", lambda *_, **__: 1 / 0)
        with pytest.raises(ServiceError, match=r"could not be told \(ZeroDivisionError"):
            ask().result(30)
    assert ask().result(30).merge_version == 1
    assert one.faults() == ()


@pytest.mark.parametrize("what", ["encode", "using"])
def test_a_thread_that_dies_is_named_and_leaves_nobody_waiting(
    moe: Moe, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = queue_of(moe, workers=1)

    def die(*_: Any, **__: Any) -> None:
        raise SystemExit("no more")

    monkeypatch.setattr(type(one.engine.encode) if what == "encode" else Engine, what, die)
    one.start()
    assert one.faults() == ()
    future = one.submit(TEXTS[:1])
    with pytest.raises((ServiceError, Stopping)):
        future.result(30)
    assert [fault.split(" died")[0] for fault in one.faults()] in (["tanbr-model-1"], ["tanbr-model-2"])
    with pytest.raises(Stopping, match="must be restarted"):
        one.submit(TEXTS[:1])
    one.stop(10)


def spoil(one: Queue) -> None:
    """Break what answers, and only that."""
    with torch.no_grad():
        for piece in one.engine.moe.plan.blended:
            model_of(one).get_parameter(piece.target).fill_(float("nan"))


@pytest.mark.parametrize("family", [None, "t5_moe"])
def test_a_version_that_answers_with_nan_is_left_at_once_and_reported(make: Made, family: str | None) -> None:
    one, queue = make(family)
    K = one.engine.moe.num_experts

    def ask() -> Answered | Generated:
        return (one.submit(TEXTS[:3]) if family is None else one.generate(["w1"], max_tokens=2)).result(30)

    before = ask()
    one.engine.commit(one.engine.prepare(np.eye(K)[0]), slot=8)
    spoil(one)
    queue.get_nowait()
    after = ask()
    assert (before.merge_version, after.merge_version) == (1, 1)
    assert queue.get_nowait() == Broken(2, 8)
    assert queue.get_nowait().version == 1
    spoil(one)
    with pytest.raises(ServiceError, match="no other is at hand"):
        ask()


def test_what_was_streamed_is_not_taken_back(make: Made) -> None:
    one, _ = make("t5_moe", max_tokens=10_000)
    endless(one)
    one.engine.commit(one.engine.prepare(np.eye(4)[0]), slot=8)
    endless(one)
    pieces: list[str] = []

    def hear(_: int, piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            spoil(one)

    with pytest.raises(ServiceError, match="broke off"):
        one.generate(["w1"], on_token=hear).result(30)
    assert one.engine.live.version == 1


def test_what_was_streamed_is_not_streamed_again_when_a_batch_fails(make: Made) -> None:
    one, _ = make("t5_moe", max_tokens=400, gather=True)
    endless(one)
    pieces: list[str] = []
    backend = one.engine.live.backend
    generate = backend.generate

    def fails_once(inputs: Any, rows: Any) -> Any:
        backend.generate = generate  # type: ignore[method-assign]
        add = rows[-1].add

        def until_heard(token: Any) -> None:
            add(token)
            if pieces:
                raise RuntimeError("gone")

        rows[-1].add = until_heard
        return generate(inputs, rows)

    backend.generate = fails_once  # type: ignore[method-assign]
    streamed = one.generate(["w1 w2"], max_tokens=5, on_token=lambda _, piece: pieces.append(piece))
    other = one.generate(["w1 w2"], max_tokens=5)
    one.start()
    with pytest.raises(ServiceError, match="gone"):
        streamed.result(30)
    assert len(pieces) == 1
    assert other.result(30).completion_tokens == (5,)  # of which nobody had heard anything


def test_the_wrong_question_is_refused(make: Made) -> None:
    one, _ = make()
    with pytest.raises(InputError, match="cannot write"):
        one.generate(["w1"])
    with pytest.raises(InputError, match="at least one text"):
        one.submit([])
    text, _ = make("t5_moe")
    with pytest.raises(InputError, match="writes text"):
        text.submit(["w1"])


# --- room, padding, workers -------------------------------------------------------------------------------------------


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=9)


@given(lengths=LENGTHS, most=st.integers(1, 10), fixed=st.integers(0, 60))
def test_texts_of_like_length_are_grouped_and_no_other_cut_costs_less(
    lengths: list[int], most: int, fixed: int
) -> None:
    def cost(groups: list[list[int]]) -> int:
        return sum(max(lengths[i] for i in group) * len(group) + fixed for group in groups)

    groups = like_lengths(lengths, most=most, fixed=fixed)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(1 <= len(group) <= most for group in groups)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    inside = range(1, len(lengths))
    cuts = [(0, *places, len(lengths)) for size in range(len(lengths)) for places in combinations(inside, size)]
    ways = [[order[a:b] for a, b in pairwise(cut)] for cut in cuts]
    assert cost(groups) == min(cost(way) for way in ways if all(len(group) <= most for group in way))
