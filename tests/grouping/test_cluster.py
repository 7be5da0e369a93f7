from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import InputError
from tanbr.grouping.cluster import Grouping, clustered, draw
from tanbr.router.groups import Groups


def apart(points):
    return ((points[:, None] - points[None]) ** 2).sum(axis=2)


def test_planted_families_are_found_in_the_order_of_their_first_experts() -> None:
    rng = np.random.default_rng(0)
    family = rng.permutation(np.arange(48) % 6)
    centres = 4.0 * np.eye(6)
    points = centres[family] + 0.1 * rng.normal(size=(48, 6))
    groups = clustered(apart(points), into=6)
    for members in groups.members:
        assert len({family[k] for k in members}) == 1
    firsts = [min(members) for members in groups.members]
    assert firsts == sorted(firsts)
    assert clustered(apart(points), into=6) == groups


def test_what_lies_near_is_joined() -> None:
    points = np.array([0.0, 1.0, 0.1, 1.1, 9.0])[:, None]
    groups = clustered(apart(points), into=2)
    assert groups.members == ((0, 1, 2, 3), (4,))


def test_experts_that_are_all_alike_still_make_as_many_groups() -> None:
    groups = clustered(np.zeros((9, 9)), into=4)
    assert len(groups) == 4
    assert groups.experts == 9


def test_a_chain_of_many_experts_is_written_and_read(tmp_path: Path) -> None:
    points = (3.0 ** np.arange(200))[:, None] ** 0.2
    groups = clustered(apart(points), into=2)
    groups.save(tmp_path / "groups.json")
    assert Groups.load(tmp_path / "groups.json") == groups


@pytest.mark.parametrize("into", [0, 1, 10, -3])
def test_a_number_of_groups_that_cannot_be_is_refused(into: int) -> None:
    with pytest.raises(InputError, match="9 experts make 2 to 9 groups"):
        clustered(np.zeros((9, 9)), into=into)


def test_distances_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="finite"):
        clustered(np.full((4, 4), np.nan), into=2)


def test_a_grouping_says_how_alike_its_groups_are_and_draws_them(tmp_path: Path) -> None:
    similarity = np.array([[1, 0.8, 0.1], [0.8, 1, 0.3], [0.1, 0.3, 1]])
    found = Grouping(Groups.of([[0, 1], [2]], found_by="weights"), similarity)
    assert found.within == pytest.approx(0.8, abs=1e-15)
    assert found.between == pytest.approx(0.2, abs=1e-15)
    assert np.isnan(Grouping(Groups.by_labels(range(3)), similarity).within)
    draw(found, tmp_path / "new" / "groups.png")
    assert (tmp_path / "new" / "groups.png").stat().st_size > 1000
