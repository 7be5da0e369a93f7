from pathlib import Path
from typing import Any

import pytest
import torch

from elsewhere import elsewhere
from moe.tiny import build
from tanbr.merge import open as open_moe
from tanbr.serve.decode import Joining, NotFinite, Step, Written, decode
from tanbr.serve.sampling import Sampling

LIMITS = [3, 7, 7]
KINDS = {"encoder_decoder": "t5_moe", "causal": "mixtral"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(kind: str, tmp_path: Path) -> Any:
    build(KINDS[kind]).save_pretrained(tmp_path)
    return open_moe(tmp_path).dense().double()  # in float64 no two words are so near that rounding chooses


def prompts(kind: str, rows: Any = ([5, 6, 7, 8, 9], [10, 11], [12, 13, 14])) -> dict[str, torch.Tensor]:
    length = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        part = slice(length - len(row), length) if kind == "causal" else slice(0, len(row))
        ids[i, part], mask[i, part] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask}


def listen(step: Step) -> tuple[int, ...]:
    return ()


def test_decoding_is_what_transformers_does_greedily(kind: str, model: Any) -> None:
    inputs = prompts(kind)
    steps: list[Step] = []

    def hear(step: Step) -> tuple[int, ...]:
        steps.append(step)
        return ()

    done = decode(model, inputs, limits=LIMITS, on_step=hear)
    expected = model.generate(**inputs, max_new_tokens=7, do_sample=False, decoder_start_token_id=0, pad_token_id=0)
    expected = expected[:, 1:] if kind == "encoder_decoder" else expected[:, 5:]
    end = model.generation_config.eos_token_id
    for row, limit in enumerate(LIMITS):
        wanted = [int(t) for t in expected[row][:limit]]
        written = done[row]
        assert written is not None
        assert written.tokens == tuple(wanted[: wanted.index(end)] if end in wanted else wanted)
        assert written.stopped == (end in wanted)
        assert tuple(step.added[row] for step in steps if row in step.added) == written.tokens
        assert 0 < written.confidence <= 1
    assert next(sorted(step.ended) for step in steps if step.ended) == [0]  # the short one is told when it ends
    assert {row: written for step in steps for row, written in step.ended.items()} == dict(enumerate(done))


def test_a_row_that_leaves_changes_nothing_for_the_others(kind: str, model: Any) -> None:
    together = decode(model, prompts(kind), limits=[1, 9, 4], on_step=listen)
    for row, ids in enumerate(([5, 6, 7, 8, 9], [10, 11], [12, 13, 14])):
        (alone,) = decode(model, prompts(kind, [ids]), limits=[(1, 9, 4)[row]], on_step=listen)
        written = together[row]
        assert isinstance(written, Written)
        assert isinstance(alone, Written)
        assert written.tokens == alone.tokens
        assert written.confidence == pytest.approx(alone.confidence, rel=1e-9)  # float64


def test_rows_that_join_a_running_batch_are_answered_as_if_alone_and_so_are_the_others(kind: str, model: Any) -> None:
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # only limits end a row
    asked = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14], [20, 21, 22, 23, 24, 25, 26], [30]]
    limits = [12, 4, 7, 5, 3]
    coming = {2: [2, 3], 6: [4]}  # steps after which rows come: longer and shorter prompts than those at work
    at_work: list[int] = []

    def more(rows: int) -> Joining | None:
        at_work.append(rows)
        new = coming.get(len(at_work), [])
        return Joining(prompts(kind, [asked[row] for row in new]), [limits[row] for row in new]) if new else None

    done = decode(model, prompts(kind, asked[:2]), limits=limits[:2], on_step=listen, more=more)
    assert at_work == [2, 2, 4, 3, 3, 3, 3, 3, 1, 1, 1]
    for row, ids in enumerate(asked):
        (alone,) = decode(model, prompts(kind, [ids]), limits=[limits[row]], on_step=listen)
        written = done[row]
        assert isinstance(written, Written)
        assert isinstance(alone, Written)
        assert written.tokens == alone.tokens
        assert written.confidence == pytest.approx(alone.confidence, rel=1e-9)  # float64


def test_rows_that_are_given_up_are_written_no_further_and_without_any_decoding_ends(kind: str, model: Any) -> None:
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # only limits end a row
    whole = decode(model, prompts(kind), limits=[6, 6, 6], on_step=listen)
    steps: list[Step] = []

    def give_up(step: Step) -> list[int]:
        steps.append(step)
        return [1] if len(steps) == 2 else [0, 2] if len(steps) == 4 else []

    done = decode(model, prompts(kind), limits=[6, 6, 6], on_step=give_up)
    assert done == [None, None, None]
    assert [sorted(step.added) for step in steps] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
    for row in (0, 2):
        written = whole[row]
        assert written is not None
        assert tuple(step.added[row] for step in steps) == written.tokens[:4]


def test_nan_is_found_in_the_step_in_which_it_appears(kind: str, model: Any) -> None:
    head = model.get_output_embeddings()
    calls = 0

    def spoil(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return logits * float("nan") if calls == 3 else logits

    head.register_forward_hook(spoil)
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    with pytest.raises(NotFinite):
        decode(model, prompts(kind), limits=[9, 9, 9], on_step=listen)
    assert calls == 3


def test_sampled_rows_repeat_by_their_seed_whatever_joins_or_leaves_and_greedy_rows_stay_greedy(
    kind: str, model: Any
) -> None:
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # only limits end a row
    asked = [[5, 6, 7, 8, 9], [10, 11], [5, 6, 7, 8, 9], [20, 21, 22, 23, 24, 25, 26]]
    limits = [9, 4, 9, 5]
    how = [Sampling(1.0, 1.0, 1), None, Sampling(1.0, 1.0, 2), Sampling(1.3, 0.9, 3)]
    steps: list[Step] = []

    def hear(step: Step) -> tuple[int, ...]:
        steps.append(step)
        return ()

    def more(rows: int) -> Joining | None:
        return Joining(prompts(kind, asked[2:]), limits[2:], how[2:]) if len(steps) == 2 else None

    together = decode(model, prompts(kind, asked[:2]), limits=limits[:2], on_step=hear, more=more, sampling=how[:2])
    for row, ids in enumerate(asked):
        (alone,) = decode(model, prompts(kind, [ids]), limits=[limits[row]], on_step=listen, sampling=[how[row]])
        written = together[row]
        assert isinstance(written, Written)
        assert isinstance(alone, Written)
        assert written.tokens == alone.tokens
        assert written.confidence == pytest.approx(alone.confidence, rel=1e-9)  # float64
        chances = [step.chances[row] for step in steps if row in step.added]
        assert written.confidence == pytest.approx(sum(chances) / len(chances), rel=1e-12)
    first, _, third, _ = together
    assert isinstance(first, Written)
    assert isinstance(third, Written)
    assert first.tokens != third.tokens  # one prompt, two seeds: 64 words, nine steps
    (greedy,) = decode(model, prompts(kind, asked[1:2]), limits=[4], on_step=listen)
    assert together[1] is not None
    assert greedy is not None
    assert together[1].tokens == greedy.tokens


def test_without_draws_logits_are_not_looked_at_again(kind: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy decoding is the same operations as before there was sampling, and so the same bits."""
    called: list[int] = []
    monkeypatch.setattr("tanbr.serve.sampling.drawn", lambda *_: called.append(1))
    decode(model, prompts(kind), limits=LIMITS, on_step=listen, sampling=[None, None, None])
    assert called == []


def test_decoding_is_the_same_elsewhere(kind: str, model: Any) -> None:
    def written(place: Any) -> Any:
        def on(inputs: Any) -> dict[str, torch.Tensor]:
            return {name: value.to(place) for name, value in inputs.items()}

        others = iter([Joining(on(prompts(kind, ([20, 21], [22, 23, 24]))), [4, 3]), None, None, None, None, None])
        sampling = (None, Sampling(0.8, 0.9, 1), None)
        return decode(
            model.to(place), on(prompts(kind)), limits=LIMITS, on_step=listen, more=lambda _: next(others, None),
            sampling=sampling,
        )  # fmt: skip

    with elsewhere() as device:
        here = written("cpu")
        assert written(device) == here
