import numpy as np
import pytest

from tanbr.errors import ConfigError
from tanbr.experiments.methods import KINDS, method, methods


def test_names_say_how_a_router_starts_and_what_mix_it_gets() -> None:
    plain, warm, told = method("tanbr"), method("nucb+survey"), method("tanbr+probes+oracle")
    assert method("tanbr+survey+regression").name == "tanbr+regression+survey"
    assert method("average+regression").merging == "regression"
    assert (plain.warm_start, plain.oracle, plain.surveyed) == ("none", False, False)
    assert (warm.name, warm.warm_start, warm.surveyed) == ("nucb+survey", "survey", True)
    assert (told.name, told.warm_start, told.oracle) == ("tanbr+probes+oracle", "probes", True)


def test_options_hold_for_those_that_learn() -> None:
    names = [m.name for m in methods(["tanbr", "average", "nucb+survey", " "], warm_start="probes", oracle=True)]
    assert names == ["tanbr+probes+oracle", "average", "nucb+survey+oracle"]
    assert [m.name for m in methods(names)] == names  # a result's name is read back
    assert len(methods(["tanbr", "tanbr"])) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tambr", "unknown method 'tambr'; did you mean 'tanbr'"),
        ("zzz", "unknown method 'zzz'; known: tanbr, paper"),
        ("tanbr+magic", "after tanbr+ may follow probes, survey, oracle, .*regression"),
        ("average+survey", "after average+ may follow .*regression"),
        ("tags+regression", "nothing, as it neither learns nor chooses blends"),
        ("tanbr+probes+survey", "one warm start"),
        ("tanbr+regression:rigde=1", "no setting 'rigde'"),
        ("nowhere.at:all", "cannot be imported"),
        ("numpy:nothing", "cannot be imported"),
    ],
)
def test_a_wrong_name_is_explained(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("+", r"\+")):
        method(name)


def test_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match="no methods"):
        methods([""])


def test_every_kind_says_what_it_is() -> None:
    assert all(kind.about for kind in KINDS.values())
    assert np.count_nonzero([kind.learns for kind in KINDS.values()]) >= 4
