import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanbr.errors import DataError, InputError
from tanbr.lab.tasks import tiny, traffic
from tanbr.lab.tasks.traffic import Traffic

POOLS = {task.name: tiny.generate(task.name, 30, seed=0) for task in tiny.TASKS[:3]}


@given(
    kind=st.sampled_from(traffic.KINDS), slots=st.integers(1, 90), seed=st.integers(0, 99),
    alpha=st.sampled_from([0.05, 0.3, 2.0]), period=st.integers(1, 50),
)  # fmt: skip
@settings(max_examples=60)
def test_every_mix_is_on_the_simplex(kind: str, slots: int, seed: int, alpha: float, period: int) -> None:
    mixes = traffic.mixes(kind, tasks=5, slots=slots, seed=seed, alpha=alpha, period=period)
    assert mixes.shape == (slots, 5)
    assert (mixes >= 0).all()
    np.testing.assert_allclose(mixes.sum(axis=1), 1.0)
    again = traffic.mixes(kind, tasks=5, slots=slots, seed=seed, alpha=alpha, period=period)
    np.testing.assert_array_equal(mixes, again)


def test_kinds_move_as_they_say() -> None:
    def steps(kind: str) -> np.ndarray:
        mixes = traffic.mixes(kind, tasks=5, slots=81, seed=1, period=20)
        return np.abs(np.diff(mixes, axis=0)).sum(axis=1)

    assert (steps("fixed") == 0).all()
    assert (np.flatnonzero(steps("switching")) + 1).tolist() == [20, 40, 60, 80]
    assert steps("dirichlet").max() < 0.11  # at most 2 in 20 slots
    assert steps("sinusoidal").min() > 0


def test_requests_follow_the_mix_and_the_seed() -> None:
    mixes = np.tile([0.7, 0.3, 0.0], (40, 1))
    slots = list(Traffic(POOLS, mixes, requests=50, seed=4))
    tags = [row.task for slot in slots for row in slot.rows]
    shares = [tags.count(name) / len(tags) for name in POOLS]
    assert shares[2] == 0
    assert abs(shares[0] - 0.7) < 0.05
    assert [slot.texts for slot in slots] == [slot.texts for slot in Traffic(POOLS, mixes, requests=50, seed=4)]
    assert slots[0].texts != next(iter(Traffic(POOLS, mixes, requests=50, seed=5))).texts


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: traffic.check("chaotic", slots=1, alpha=1), "unknown kind of traffic 'chaotic'; choose one of fixed"),
        (lambda: traffic.check("dirichlet", slots=1, alpha=0), "alpha above 0"),
        (lambda: Traffic(POOLS, np.ones((2, 2)) / 2, requests=1, seed=0), r"\(slots, 3\)"),
        (lambda: Traffic({"sentiment": []}, np.ones((2, 1)), requests=1, seed=0), "no rows .* for sentiment"),
    ],
)
def test_bad_input_is_named(make, says: str) -> None:
    with pytest.raises((InputError, DataError), match=says):
        make()


def test_a_newcomer_comes_late_and_often() -> None:
    mixes = traffic.mixes("dirichlet", tasks=3, slots=60, seed=0)
    new = traffic.with_newcomer(mixes, 1, since=20, seed=0)
    np.testing.assert_allclose(new.sum(axis=1), 1.0)
    assert (new[:20, 1] == 0.0).all()
    assert ((new[20:, 1] >= 0.3) & (new[20:, 1] <= 1.0)).all()
    np.testing.assert_allclose(new[:20, 0] / new[:20, 2], mixes[:20, 0] / mixes[:20, 2])
