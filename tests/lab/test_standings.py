import numpy as np
import pytest

from tanbr.lab.intervals import interval
from tanbr.lab.report import lay_out, markdown
from tanbr.lab.simulate import Outcome
from tanbr.lab.standings import Standings
from tanbr.types import FloatArray, SlotRecord


def outcome(seed: int, method: str, rewards: FloatArray, figures: tuple[float, float] = (0.5, np.nan)) -> Outcome:
    records = [
        SlotRecord(t, 1 + t, np.array([0.5, 0.5]), np.array([1.0, 0.0]), np.array([r, np.nan]), np.array([4.0, 0.0]))
        for t, r in enumerate(rewards)
    ]
    return Outcome(seed, method, {}, records, np.array(figures), seconds=1.0)


def standings() -> Standings:
    slow = np.concatenate([np.full(30, 0.4), np.full(50, 0.79)])
    runs = [
        run
        for seed in (0, 1)
        for run in (
            outcome(seed, "tanbr", slow),
            outcome(seed, "tanbr+oracle", slow + 0.01, (0.6, 0.2)),
            outcome(seed, "average", np.full(80, 0.6)),
            outcome(seed, "best-per-slot", np.full(80, 0.8)),
        )
    ]
    mixes = {seed: np.tile([0.75, 0.25], (80, 1)) for seed in (0, 1)}
    return Standings(runs, ("one", "two"), mixes)


def test_the_figures_by_hand() -> None:
    s = standings()
    assert (s.subject, s.best, s.late) == ("tanbr", "best-per-slot", 40)
    assert s.reward("average").mean == pytest.approx(0.6)
    assert s.above("tanbr", "average", after=40).mean == pytest.approx(0.19)
    assert s.above("tanbr", "average").seeds == pytest.approx((30 / 80 * 0.4 + 50 / 80 * 0.79 - 0.6,) * 2)
    assert s.of_tags("tanbr") is None
    np.testing.assert_allclose(s.figures("tanbr+oracle"), [0.6, 0.2])
    assert np.isnan(s.figures("tanbr")[1])
    page = markdown(s, command="tanbr simulate")
    assert all(page.count(f"| {method} |") >= 2 for method in s.methods)


def test_regret_is_counted_against_the_best_method_where_no_bound_ran() -> None:
    runs = [outcome(0, "a", np.full(30, 0.5)), outcome(0, "b", np.full(30, 0.7))]
    s = Standings(runs, ("one", "two"), {0: np.tile([0.5, 0.5], (30, 1))})
    assert s.best == "b"
    assert np.isnan(s.reward("a").over_seeds)


def test_a_panel_of_the_subject_is_a_variant_of_it_and_a_bound_is_not() -> None:
    names = ["tanbr", "tanbr@2", "tanbr@2+survey", "tanbr@2+recognised", "tanbr+oracle", "tags"]
    runs = [outcome(0, name, np.full(30, 0.5 + 0.05 * i)) for i, name in enumerate(names)]
    s = Standings(runs, ("one", "two"), {0: np.tile([0.5, 0.5], (30, 1))})
    assert s.variants == ["tanbr", "tanbr@2", "tanbr@2+survey"]
    assert s.to_json()["methods"]["tanbr@2"]["share_of_tags"] == pytest.approx([0.55 / 0.75])
    [(_, header, rows), *_] = lay_out(s)
    assert [row[header.index("share of tags")] for row in rows][:2] == ["66.7%", "73.3%"]


def test_an_interval_covers_the_mean_of_slots_that_hang_together() -> None:
    """A mean of an autocorrelated series lies in its interval about 95 times in 100; of one slot at a time far less."""
    hits = {1: 0, 20: 0}
    for trial in range(60):
        noise = np.random.default_rng(trial).normal(size=(2, 440))
        series = np.stack([np.convolve(row, np.ones(10) / 10, mode="valid")[:400] for row in noise])
        for block in hits:
            found = interval(list(series), block=block, seed=trial)
            hits[block] += found.low <= 0 <= found.high
    assert hits[20] >= 51  # 85%
    assert hits[1] < 40


def test_a_short_series_has_an_interval_and_seeds_that_disagree_widen_theirs() -> None:
    short = interval([np.random.default_rng(0).random(20)])
    assert short.high - short.low > 0.1
    found = interval([np.full(40, 0.2), np.full(40, 0.4)])
    assert found.seeds == pytest.approx((0.2, 0.4))
    assert found.over_seeds == pytest.approx(12.706 * 0.1, rel=1e-3)  # Student's t with one degree of freedom
    assert interval([np.array([0.5, np.nan, 0.7])]).mean == pytest.approx(0.6)
