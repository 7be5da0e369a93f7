import numpy as np
import pytest

from tanbr.errors import ConfigError, DataError
from tanbr.lab.corpus import generated
from tanbr.lab.methods import Bench, method, methods
from tanbr.lab.settings import Config
from tanbr.merge import Moe
from tanbr.types import AnswersBy


def test_names_say_what_a_router_knows_how_it_merges_and_how_many_models_it_holds() -> None:
    names = [
        "tanbr",
        "nucb+survey",
        "tanbr+probes+oracle",
        "tanbr@2+recognised",
        "proportional@3",
        "average+regression",
    ]
    found = methods([*names, " ", "tanbr"])
    assert [one.name for one in found] == names  # each once
    assert [one.knows for one in found[:4]] == [(), ("survey",), ("probes", "oracle"), ("recognised",)]
    assert [one.surveyed for one in found[:4]] == [False, True, True, False]
    assert method("tanbr+survey+regression").name == "tanbr+regression+survey"
    panels = [one.name for one in methods(["tanbr+survey", "average", "best-fixed"], models=[1, 2])]
    assert panels == ["tanbr+survey", "tanbr@2+survey", "average", "best-fixed", "best-fixed@2"]
    assert [one.name for one in methods(panels)] == panels  # a result's name is read back


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
        ("tanbr+magic", "after tanbr+ may follow probes, survey, oracle, .*regression"),
        ("average+survey", "after average+ may follow .*regression"),
        ("tags+regression", "nothing, as it neither learns nor chooses blends"),
        ("tanbr+probes+survey", "one warm start"),
        ("tanbr+regression:rigde=1", "no setting 'rigde'"),
        ("numpy:nothing", "cannot be imported"),
        ("average@2", "fills no panel"),
        ("tanbr@0", "whole number of models"),
    ],
)
def test_a_wrong_name_is_explained(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("+", r"\+")):
        method(name)


@pytest.mark.parametrize("answers_by", ["labels", "posterior"])
def test_the_un_merged_moe_without_tags_is_the_tagged_one_where_requests_are_recognised(
    moe: Moe, answers_by: AnswersBy
) -> None:
    bench = Bench(moe, generated(), Config(), answers=answers_by)
    rows = [row for task in bench.corpus.tasks for row in bench.corpus.stream[task.name][:6]]
    mixes = np.full((1, 8), 1 / 8)
    rewards = {
        name: method(name).contestant(bench, mixes=mixes, seed=0).play(rows).total_reward
        for name in ("tags", "untagged+recognised", "untagged", "average")
    }
    assert rewards["tags"] == rewards["untagged+recognised"] >= rewards["untagged"] > rewards["average"]


def test_answers_by_the_posterior_are_for_every_method_alike(moe: Moe) -> None:
    """One merged model confuses the tasks' words, whoever chose its blend; nobody is left without the repair."""
    rows = [row for of_task in generated().stream.values() for row in of_task[:12]]
    benches = [Bench(moe, generated(), Config(), answers=answers) for answers in ("posterior", "labels")]
    for name in ("average", "regmean", "tanbr+oracle", "proportional@2"):
        players = [method(name).contestant(bench, mixes=np.full((1, 8), 1 / 8), seed=0) for bench in benches]
        repaired, plain = (player.play(rows).total_reward for player in players)
        assert repaired > plain


def test_a_survey_of_the_other_answers_is_asked_for(moe: Moe) -> None:
    bench = Bench(moe, generated(), Config(), moe.path / "none.json", answers="labels")
    with pytest.raises(DataError, match=r"tanbr survey --answers labels"):
        method("best-fixed").contestant(bench, mixes=np.full((1, 8), 1 / 8), seed=0)
