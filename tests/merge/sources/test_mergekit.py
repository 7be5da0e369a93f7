"""mergekit's configurations, as lists of experts."""

import pytest

from tanbr.errors import ConfigError
from tanbr.merge.sources.mergekit import from_mergekit


def read(method, *models, **values):
    return from_mergekit({"merge_method": method, "models": list(models), **values}, source="m.yml")


def model(path, **parameters):
    return {"model": path, "parameters": parameters} if parameters else {"model": path}


def test_linear_is_the_average_and_the_first_model_stands_for_a_base() -> None:
    assert read("linear", model("a", weight=0.25), model("b"), dtype="bfloat16") == {
        "base": "a",
        "experts": [{"path": "a", "weight": 0.25}, {"path": "b", "weight": 1.0}],
        "method": "average",
    }


def test_weights_that_do_not_sum_to_one_become_a_scale() -> None:
    found = read("task_arithmetic", model("a", weight=0.5), model("b", weight=1.5), base_model="o")
    assert (found["base"], found["method"]) == ("o", "task-arithmetic:scale=2.0")
    told = read(
        "task_arithmetic", model("a"), model("b"), base_model="o", parameters={"normalize": True, "lambda": 0.5}
    )
    assert told["method"] == "task-arithmetic:scale=0.5"
    once = read("task_arithmetic", model("a"), model("b", weight=0.75), base_model="o", parameters={"weight": 0.25})
    assert [one["weight"] for one in once["experts"]] == [0.25, 0.75]


def test_the_base_in_the_list_is_no_expert_of_methods_on_differences() -> None:
    found = read("ties", model("o"), model("a", density=0.3), model("b", density=0.3), base_model="o")
    assert [one["path"] for one in found["experts"]] == ["a", "b"]
    assert found["method"] == "ties:density=0.3:normalise=true:scale=1.0"


def test_ties_without_normalising_is_carried_over() -> None:
    """The sum is linear in the weights, so that what they sum to becomes the scale."""
    parameters = {"normalize": False, "lambda": 0.5}
    found = read("ties", model("a", weight=1.0), model("b", weight=3.0), base_model="o", parameters=parameters)
    assert found["method"] == "ties:density=1.0:normalise=false:scale=2.0"


def test_slerp_goes_from_the_base_to_the_other() -> None:
    found = read("slerp", model("a"), model("b"), base_model="b", parameters={"t": 0.3})
    assert [(one["path"], one["weight"]) for one in found["experts"]] == [("a", 0.3), ("b", 0.7)]


def test_adapters_after_a_plus_have_one_base() -> None:
    found = read("linear", model("o+x"), model("o+y"))
    assert (found["base"], [one["path"] for one in found["experts"]]) == ("o", ["x", "y"])
    with pytest.raises(ConfigError, match="one base"):
        read("linear", model("o+x"), model("p+y"))


WRONG = [
    ({"merge_method": "passthrough", "models": []}, "merge_method must be one of"),
    ({"merge_method": "linear", "slices": []}, "'slices' has no counterpart"),
    ({"merge_method": "linear", "models": ["a"]}, "with `model: FOLDER`"),
    ({"merge_method": "linear", "models": [model("a", weight=[0, 1])]}, "one number for the whole model"),
    ({"merge_method": "linear", "models": [model("a", gamma=1)]}, "'gamma' has no counterpart"),
    ({"merge_method": "linear", "models": [model("a")], "parameters": {"normalize": False}}, "sum to 1"),
    ({"merge_method": "linear", "models": [model("a")], "parameters": 3}, "parameters must be"),
    ({"merge_method": "ties", "models": [model("a", density=0.1), model("b", density=0.2)]}, "one density"),
    ({"merge_method": "ties", "models": [model("a")], "base_model": "a"}, "lists no models"),
    ({"merge_method": "slerp", "models": [model("a")]}, "between two models"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_what_cannot_be_carried_over_is_refused_by_name(values, message) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mergekit(values, source="m.yml")
