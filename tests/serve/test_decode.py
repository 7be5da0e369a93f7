import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from elsewhere import elsewhere
from moe.tiny import build
from tanbr.merge import open as open_moe
from tanbr.moe.text import Inputs
from tanbr.serve.decode import NotFinite, Step, Written, decode, drawn, nucleus, on_device
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


def prompts(kind: str, rows: Any = ([5, 6, 7, 8, 9], [10, 11], [12, 13, 14])) -> Inputs:
    length = max(map(len, rows))
    ids, mask = np.zeros((len(rows), length), dtype=np.int64), np.zeros((len(rows), length), dtype=np.int64)
    for i, row in enumerate(rows):
        part = slice(length - len(row), length) if kind == "causal" else slice(0, len(row))
        ids[i, part], mask[i, part] = row, 1
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
    expected = model.generate(
        **on_device(inputs, model), max_new_tokens=7, do_sample=False, decoder_start_token_id=0, pad_token_id=0
    )
    expected = expected[:, 1:] if kind == "encoder_decoder" else expected[:, 5:]
    end = model.generation_config.eos_token_id
    for row, limit in enumerate(LIMITS):
        wanted = [int(t) for t in expected[row][:limit]]
        written = done[row]
        assert written is not None
        assert written.tokens == tuple(wanted[: wanted.index(end)] if end in wanted else wanted)
        assert written.stopped == (end in wanted)
        assert tuple(step.added[row] for step in steps if row in step.added) == written.tokens
    assert next(sorted(step.ended) for step in steps if step.ended) == [0]  # the short one is told when it ends
    assert {row: written for step in steps for row, written in step.ended.items()} == dict(enumerate(done))


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


def test_sampled_rows_repeat_by_their_seed_whatever_leaves_and_greedy_rows_stay_greedy(kind: str, model: Any) -> None:
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # only limits end a row
    asked = [[5, 6, 7, 8, 9], [10, 11], [5, 6, 7, 8, 9], [20, 21, 22, 23, 24, 25, 26]]
    limits = [9, 4, 9, 5]
    how = [Sampling(1.0, 1.0, 1), None, Sampling(1.0, 1.0, 2), Sampling(1.3, 0.9, 3)]
    together = decode(model, prompts(kind, asked), limits=limits, on_step=listen, sampling=how)
    for row, ids in enumerate(asked):
        (alone,) = decode(model, prompts(kind, [ids]), limits=[limits[row]], on_step=listen, sampling=[how[row]])
        written = together[row]
        assert isinstance(written, Written)
        assert isinstance(alone, Written)
        assert written.tokens == alone.tokens
    first, _, third, _ = together
    assert isinstance(first, Written)
    assert isinstance(third, Written)
    assert first.tokens != third.tokens  # one prompt, two seeds: 64 words, nine steps
    (greedy,) = decode(model, prompts(kind, asked[1:2]), limits=[4], on_step=listen)
    assert together[1] is not None
    assert greedy is not None
    assert together[1].tokens == greedy.tokens


def test_decoding_is_the_same_elsewhere(kind: str, model: Any) -> None:
    def written(place: Any) -> Any:
        sampling = (None, Sampling(0.8, 0.9, 1), None)
        return decode(model.to(place), prompts(kind), limits=LIMITS, on_step=listen, sampling=sampling)

    with elsewhere() as device:
        here = written("cpu")
        assert written(device) == here


# --- drawn words ------------------------------------------------------------------------------------------------------

LOGITS = st.lists(st.floats(-20, 20), min_size=2, max_size=12)
EPS = np.finfo(np.float64).eps


def softmax(logits: list[float], temperature: float = 1.0) -> torch.Tensor:
    return (torch.tensor([logits], dtype=torch.float64) / temperature).softmax(dim=-1)


def draw(logits: list[float], temperature: float, top_p: float, uniform: float) -> int:
    vectors = (torch.tensor([value], dtype=torch.float64) for value in (temperature, top_p, uniform))
    return int(drawn(torch.tensor([logits], dtype=torch.float64), *vectors))


@given(LOGITS, st.floats(0.01, 1.0))
def test_the_nucleus_is_the_smallest_set_whose_mass_reaches_p(logits: list[float], p: float) -> None:
    chances = softmax(logits)
    kept = nucleus(chances, torch.tensor([p], dtype=torch.float64))[0]
    row, slack = chances[0].numpy(), 4 * len(logits) * EPS  # of sums of so many numbers up to 1
    mass, size = row[kept.numpy()].sum(), int(kept.sum())
    assert mass >= p - slack
    smaller = [sum(row[list(some)]) for some in itertools.combinations(range(len(row)), size - 1)]
    assert max(smaller, default=0.0) < p + slack  # no set of fewer words reaches it
    assert row[kept.numpy()].min() >= max(row[~kept.numpy()], default=0.0)  # nothing left out is more probable


@given(LOGITS, st.floats(0.1, 2.0), st.floats(0.01, 1.0), st.floats(0, 1, exclude_max=True))
@example(logits=[0.0, 5.0], temperature=0.125, p=1.0, uniform=0.0)
def test_a_word_is_drawn_where_the_sum_of_the_chances_passes_the_number(
    logits: list[float], temperature: float, p: float, uniform: float
) -> None:
    word = draw(logits, temperature, p, uniform)
    chances = softmax(logits, temperature)
    row = torch.where(nucleus(chances, torch.tensor([p], dtype=torch.float64)), chances, 0.0)[0].numpy()
    assert row[word] > 0
    sums, slack = np.concatenate([[0.0], np.cumsum(row)]) / row.sum(), 4 * len(row) * EPS
    assert sums[word] - slack <= uniform <= sums[word + 1] + slack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_no_word_of_chance_0_is_drawn(dtype: torch.dtype, top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if sums are rounded such that they grow where the chance is 0, as those of a GPU may."""
    exact = torch.Tensor.cumsum
    drift = torch.arange(1, 6, dtype=dtype) * torch.finfo(dtype).eps
    ends = torch.tensor([0.0, 1 - torch.finfo(dtype).eps / 2], dtype=dtype)
    rows = torch.tensor([[-1000.0, 1.0, -1000.0, 1.0, -1000.0]] * 2, dtype=dtype)
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda chances, dim: exact(chances, dim) + drift)
    words = drawn(rows, torch.ones(2, dtype=dtype), torch.full((2,), top_p, dtype=dtype), ends)
    assert words.tolist() == [1, 3]
