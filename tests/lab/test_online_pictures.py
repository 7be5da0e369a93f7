import numpy as np
import pytest
from matplotlib.figure import Figure

from lab.test_standings import outcome
from tanbr.lab import online_pictures
from tanbr.lab.pictures import AREAS, LINES, MOST
from tanbr.lab.standings import Standings

NAMES = [
    "tanbr", "tanbr+survey", "average", "fisher", "regmean", "best-fixed", "nucb", "vector-gp", "random",
    "proportional", "best-per-slot", "tags",
]  # fmt: skip


def many() -> Standings:
    runs = [outcome(seed, name, np.full(30, 0.3 + 0.05 * i)) for seed in (0, 1) for i, name in enumerate(NAMES)]
    return Standings.of(runs, tasks=("one", "two"), mixes={seed: np.tile([0.5, 0.5], (30, 1)) for seed in (0, 1)})


def lines(canvas: Figure) -> int:
    return max(sum(len(line.get_xdata()) > 2 for line in axis.get_lines()) for axis in canvas.axes)


def test_the_subject_its_best_variant_the_best_rival_the_average_and_the_bounds_are_drawn() -> None:
    assert online_pictures.shown(many()) == [
        "tanbr", "tanbr+survey", "proportional", "average", "best-per-slot", "tags",
    ]  # fmt: skip


def test_no_picture_has_more_lines_than_can_be_told_apart() -> None:
    for draw in (online_pictures.rewards, online_pictures.regret, online_pictures.lead_by_slot):
        assert 2 <= lines(draw(many())) <= MOST == 6


def test_tasks_and_methods_share_no_colour() -> None:
    assert not set(LINES) & set(AREAS)
    assert len({*LINES, *AREAS}) == len(LINES) + len(AREAS)


def test_the_dial_has_a_line_for_each_method_that_holds_several_models_and_a_level_for_each_other() -> None:
    rewards = {"best-fixed": 0.5, "best-fixed@2": 0.6, "best-fixed@3": 0.65, "average": 0.4, "tags": 0.7}
    runs = [outcome(0, name, np.full(30, reward)) for name, reward in rewards.items()]
    few = Standings.of(runs, tasks=("one", "two"), mixes={0: np.tile([0.5, 0.5], (30, 1))})
    [axis] = online_pictures.dial(few, lambda count: 10.0 * count).axes
    drawn = {bars.get_label(): bars.lines[0] for bars in axis.containers}
    assert list(drawn) == ["best-fixed"]
    assert drawn["best-fixed"].get_xdata().tolist() == [10.0, 20.0, 30.0]
    np.testing.assert_allclose(drawn["best-fixed"].get_ydata(), [0.5, 0.6, 0.65])
    places = {word.get_text(): word.get_position()[1] for word in axis.texts}
    assert places == pytest.approx({"average": 0.4, "tags (2 models)": 0.7})  # the experts of `outcome` are two
    low, high = axis.get_ylim()
    assert low < 0.4
    assert high > 0.7
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1\n10", "2\n20", "3\n30"]


def test_levels_that_are_close_have_their_names_above_one_another() -> None:
    rewards = {"best-fixed@2": 0.6, "average": 0.4, "fisher": 0.401, "regmean": 0.402}
    runs = [outcome(0, name, np.full(30, reward)) for name, reward in rewards.items()]
    few = Standings.of(runs, tasks=("one", "two"), mixes={0: np.tile([0.5, 0.5], (30, 1))})
    [axis] = online_pictures.dial(few, lambda count: 10.0 * count).axes
    heights = [word.get_position()[1] for word in axis.texts]
    assert np.diff(heights).min() > 0.005
    assert [bars.get_label() for bars in axis.containers] == ["best-fixed"]  # a panel, though of one number alone
    low, high = axis.get_ylim()
    assert 0.3 < low < 0.4 < 0.6 < high < 0.7  # nothing but what was earned
