import pytest

from tanbr.errors import ConfigError
from tanbr.lab.paper.parts import PARTS, chosen


def test_parts_come_in_the_papers_order() -> None:
    assert [part.name for part in chosen(["fig4", "table1"])] == ["table1", "fig4"]
    assert [part.name for part in chosen([])] == [part.name for part in chosen(["all", "fig4"])] == list(PARTS)


@pytest.mark.parametrize(("name", "hint"), [("fig8", "did you mean 'fig"), ("appendix", "there are table1, fig2")])
def test_an_unknown_part_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown table or figure '{name}'; .*{hint}"):
        chosen([name])
