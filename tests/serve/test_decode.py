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
from tanbr.serve.decode import NotFinite, Row, decode, drawn, nucleus, on_device
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


def written(model: Any, inputs: Inputs, limits: list[int], sampling: Any = (None,) * 9) -> list[Row]:
    """Decode to the end."""
    rows = [Row(*how) for how in zip(limits, sampling, strict=False)]
    decode(model, inputs, rows)
    return rows


def test_decoding_is_what_transformers_does_greedily(kind: str, model: Any) -> None:
    inputs = prompts(kind)
    expected = model.generate(
        **on_device(inputs, model), max_new_tokens=7, do_sample=False, decoder_start_token_id=0, pad_token_id=0
    )
    expected = expected[:, 1:] if kind == "encoder_decoder" else expected[:, 5:]
    end = model.generation_config.eos_token_id
    for tokens, row, limit in zip(expected.tolist(), written(model, inputs, LIMITS), LIMITS, strict=True):
        wanted = tokens[:limit]
        assert row.tokens == (wanted[: wanted.index(end)] if end in wanted else wanted)
        assert row.stopped == (end in wanted)


class Fickle(Row):
    """Gives up after some tokens."""

    patience = 6

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.patience


def test_rows_that_are_given_up_are_written_no_further_and_without_any_decoding_ends(kind: str, model: Any) -> None:
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # only limits end a row
    whole = written(model, prompts(kind), [6, 6, 6])
    rows = [Fickle(6) for _ in whole]
    for row, patience in zip(rows, (4, 2, 4), strict=True):
        row.patience = patience
    calls: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _, __, logits: calls.append(len(logits)))
    decode(model, prompts(kind), rows)
    assert [row.tokens for row in rows] == [row.tokens[:n] for row, n in zip(whole, (4, 2, 4), strict=True)]
    assert calls == [3, 3, 2, 2]


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
        written(model, prompts(kind), [9, 9, 9])
    assert calls == 3


def test_sampled_rows_repeat_by_their_seed_whatever_leaves_and_greedy_rows_stay_greedy(kind: str, model: Any) -> None:
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # only limits end a row
    asked = [[5, 6, 7, 8, 9], [10, 11], [5, 6, 7, 8, 9], [20, 21, 22, 23, 24, 25, 26]]
    limits = [9, 4, 9, 5]
    how = [Sampling(1.0, 1.0, 1), None, Sampling(1.0, 1.0, 2), Sampling(1.3, 0.9, 3)]
    together = [row.tokens for row in written(model, prompts(kind, asked), limits, how)]
    alone = [written(model, prompts(kind, [ids]), [limits[i]], [how[i]])[0].tokens for i, ids in enumerate(asked)]
    assert together == alone
    assert together[0] != together[2]  # one prompt, two seeds: 64 words, nine steps
    assert together[1] == written(model, prompts(kind, asked[1:2]), [4])[0].tokens


def test_decoding_is_the_same_elsewhere(kind: str, model: Any) -> None:
    def tokens(place: Any) -> list[list[int]]:
        sampling = (None, Sampling(0.8, 0.9, 1), None)
        return [row.tokens for row in written(model.to(place), prompts(kind), LIMITS, sampling)]

    with elsewhere() as device:
        here = tokens("cpu")
        assert tokens(device) == here


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
