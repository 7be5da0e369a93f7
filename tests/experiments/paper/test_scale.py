from pathlib import Path

import pytest

from tanbr.errors import ConfigError
from tanbr.experiments.paper.scale import NAMED, Setup, scale
from tanbr.tasks import glue, tiny


def test_paper_is_the_published_size() -> None:
    named = scale("paper")
    assert (named.tuning.steps, named.tuning.batch, named.tuning.max_length) == (10_000, 128, 128)
    assert (named.slots, max(named.batches)) == (5_000, 128)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown scale 'huge'; choose one of tiny, small, paper"):
        scale("huge")


@pytest.mark.parametrize("name", ["small", "paper"])
@pytest.mark.parametrize(("need", "how"), [("model", "--preset minilm"), ("t5", "--preset flan-t5"), ("data", "GLUE")])
def test_what_a_scale_lacks_is_said_with_how_to_get_it(name: str, need: str, how: str) -> None:
    with pytest.raises(ConfigError, match=rf"fig2 at scale {name} needs {need}: --{need} names .*{how}"):
        Setup(NAMED[name], Path("out")).check((need,), "fig2")


def test_tiny_needs_nothing() -> None:
    setup = Setup(scale("tiny"), Path("out"))
    setup.check(("model", "t5", "data"), "fig2")
    assert setup.tasks == tiny.TASKS
    assert setup.bert_size.experts == setup.t5_size.experts == 8


def test_sizes_and_tasks_are_known_before_models_and_data_are() -> None:
    setup = Setup(scale("paper"), Path("out"))
    assert setup.tasks == glue.TASKS
    assert setup.t5_size == setup.scale.t5
    assert (setup.name_of("t5"), setup.data_name) == ("none", "none")
