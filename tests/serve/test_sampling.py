import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from tanbr.serve.manner import Manner
from tanbr.serve.sampling import Draws, Sampling, drawn, nucleus, samplings

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


def test_of_equal_words_the_nucleus_has_the_first() -> None:
    chances = torch.full((1, 4), 0.25, dtype=torch.float64)
    assert nucleus(chances, torch.tensor([0.5], dtype=torch.float64)).tolist() == [[True, True, False, False]]
    assert nucleus(chances, torch.tensor([0.51], dtype=torch.float64)).tolist() == [[True, True, True, False]]


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


@pytest.mark.parametrize("neighbours_p", [1.0, 0.5])
def test_a_top_p_of_1_leaves_no_word_out_whatever_the_neighbours_ask(neighbours_p: float) -> None:
    """The first word's chance is lost in the sum of all, but it is not 0."""
    logits = torch.tensor([[0.0, 5.0]] * 2, dtype=torch.float64)
    temperature, top_p = torch.full((2,), 0.125), torch.tensor([1.0, neighbours_p], dtype=torch.float64)
    assert drawn(logits, temperature, top_p, torch.zeros(2, dtype=torch.float64))[0] == 0


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


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_words_that_can_be(uniform: float) -> None:
    for third in (0.5000000001, 0.7, 0.9):
        assert draw([-np.inf, 1.0, 0.3, -np.inf], 1.0, third, uniform) in (1, 2)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.7, 0.8), (1.0, 0.6)])
def test_frequencies_are_those_of_the_softmax(temperature: float, top_p: float) -> None:
    logits, count = [1.0, 0.2, -0.5, 2.0, 0.9, -3.0, 1.4], 20_000
    rng = np.random.default_rng(7)
    rows = torch.tensor([logits] * count, dtype=torch.float64)
    vectors = (torch.full((count,), value, dtype=torch.float64) for value in (temperature, top_p))
    words = drawn(rows, *vectors, torch.from_numpy(rng.random(count))).numpy()
    chances = np.exp(np.array(logits) / temperature)
    chances /= chances.sum()
    order = np.argsort(-chances)
    kept = order[: np.searchsorted(np.cumsum(chances[order]), top_p) + 1]  # the nucleus, by another road
    expected = np.zeros(len(logits))
    expected[kept] = chances[kept] / chances[kept].sum() * count
    seen = np.bincount(words, minlength=len(logits))
    assert seen[expected == 0].sum() == 0
    statistic = ((seen - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert statistic < stats.chi2.ppf(0.999, (expected > 0).sum() - 1)


@settings(max_examples=30)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 3), st.integers(1, 6))
def test_a_rows_words_do_not_depend_on_its_neighbours(seed: int, place: int, steps: int) -> None:
    how, other = Sampling(1.0, 0.95, seed), Sampling(0.7, 1.0, 5)
    torch.manual_seed(1)
    tables = torch.randn(steps, 4, 9)

    def words(rows: list[int], sampling: list[Sampling | None]) -> list[int]:
        draws, found = Draws(), []
        draws.add(rows, sampling)
        for table in tables:
            logits = table[[place if row == 10 else row for row in rows]]
            likely, chosen = logits.softmax(-1).max(-1)
            chosen, likely = draws.draw(rows, logits, chosen, likely)
            assert torch.allclose(likely, logits.softmax(-1).gather(1, chosen[:, None])[:, 0])
            found.append(int(chosen[rows.index(10)]))
        return found

    alone = words([10], [how])
    assert words([0, 10, 3], [other, how, None]) == alone
    assert words([10, 1], [how, other]) == alone


def test_greedy_rows_are_left_as_they_were() -> None:
    draws, logits = Draws(), torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    draws.add([0, 1, 2], [None, Sampling(1.0, 1.0, 3), None])
    likely, chosen = logits.softmax(-1).max(-1)
    now, chance = draws.draw([0, 1, 2], logits, chosen, likely)
    assert now[[0, 2]].tolist() == chosen[[0, 2]].tolist()
    assert chance[[0, 2]].tolist() == likely[[0, 2]].tolist()
    same, untouched = draws.draw([0, 2], logits[[0, 2]], chosen[[0, 2]], likely[[0, 2]])
    assert (same.tolist(), untouched.tolist()) == (chosen[[0, 2]].tolist(), likely[[0, 2]].tolist())


def test_every_answer_has_a_seed_of_its_own_that_other_prompts_do_not_change() -> None:
    asked = Manner(temperature=0.5, top_p=0.9, seed=4, n=3)
    alone, two = samplings(asked, 1, chance=1), samplings(asked, 2, chance=2)
    assert two == alone * 2
    assert len({one.seed for one in alone if one is not None}) == 3
    assert samplings(Manner(temperature=0.5, top_p=0.9, seed=4), 1, chance=3) == alone[:1]
    assert {(one.temperature, one.top_p) for one in alone if one is not None} == {(0.5, 0.9)}
    chance = samplings(Manner(temperature=0.5, n=3), 2, chance=1)
    assert len({one.seed for one in chance if one is not None}) == 6
    assert samplings(Manner(n=3), 2, chance=1) == (None,) * 6
    huge = samplings(Manner(temperature=1.0, seed=10**30), 1, chance=1)  # any number will do
    assert huge == samplings(Manner(temperature=1.0, seed=10**30), 1, chance=2) != alone
