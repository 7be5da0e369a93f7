import numpy as np
import pytest

from tanbr.errors import ConfigError, DataError
from tanbr.lab.corpus import generated
from tanbr.lab.methods import Bench, method, methods
from tanbr.lab.settings import Config
from tanbr.merge import Moe
from tanbr.types import AnswersBy


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


def test_a_way_to_merge_holds_for_those_that_blend_and_do_not_say_otherwise() -> None:
    found = methods(["tanbr", "tanbr+average", "average+regression", "tags", "fisher"], merging="ties:density=0.3")
    assert [one.name for one in found] == ["tanbr+ties:density=0.3", "tanbr", "average+regression", "tags", "fisher"]
    assert [one.merging for one in found] == ["ties:density=0.3", "average", "regression", "average", "average"]
    assert [one.merging for one in methods([one.name for one in found])] == [one.merging for one in found]
    with pytest.raises(ConfigError, match="unknown merge method 'tise'; did you mean 'ties'"):
        method("tanbr", merging="tise")


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


def test_what_limits_a_panel_can_be_switched_off() -> None:
    assert method("tanbr@2+recognised").name == "tanbr@2+recognised"
    assert method("proportional@3").models == 3
    for wrong in ("average+recognised", "tags+recognised", "untagged@2"):
        with pytest.raises(ConfigError):
            method(wrong)


@pytest.mark.parametrize("answers_by", ["labels", "posterior"])
def test_the_un_merged_moe_without_tags_is_the_tagged_one_where_requests_are_recognised(
    moe: Moe, answers_by: AnswersBy
) -> None:
    bench = Bench(moe, generated(), Config(), answers_by=answers_by)
    rows = [row for task in bench.corpus.tasks for row in bench.corpus.stream[task.name][:6]]
    mixes = np.full((1, 8), 1 / 8)
    rewards = {
        name: method(name).contestant(bench, mixes=mixes, seed=0).play(rows).total_reward
        for name in ("tags", "untagged+recognised", "untagged", "average")
    }
    assert rewards["tags"] == rewards["untagged+recognised"] >= rewards["untagged"] > rewards["average"]


def test_answers_by_the_posterior_are_for_every_method_alike(moe: Moe) -> None:
    """One merged model confuses the tasks' words, whoever chose its blend; nobody is left without the repair."""
    corpus = generated()
    rows = [row for task in corpus.tasks for row in corpus.stream[task.name][:12]]
    mixes = np.full((1, 8), 1 / 8)

    def earned(name: str, answers_by: AnswersBy) -> float:
        bench = Bench(moe, corpus, Config(), answers_by=answers_by)
        player = method(name).contestant(bench, mixes=mixes, seed=0)
        return player.play(rows).total_reward

    for name in ("average", "regmean", "tanbr+oracle", "proportional@2"):
        assert earned(name, "posterior") > earned(name, "labels")


def test_a_survey_of_the_other_answers_is_asked_for(moe: Moe) -> None:
    bench = Bench(moe, generated(), Config(), moe.path / "survey.json", answers_by="posterior")
    with pytest.raises(DataError, match=r"tanbr survey --answers posterior"):
        method("best-fixed").contestant(bench, mixes=np.full((1, 8), 1 / 8), seed=0)
