from pathlib import Path

import pytest

from tanbr.errors import CheckpointError, DataError
from tanbr.lab.paper.setup import Setup, scale
from tanbr.moe import embedded


@pytest.mark.parametrize("there", [[], ["CoLA/train.tsv", "CoLA/dev.tsv"]])
def test_data_that_are_not_whole_are_refused_before_anything_runs(tmp_path: Path, there: list[str]) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    setup = Setup(scale("small"), tmp_path / "out", model=embedded.path(), data=tmp_path)
    first = "SST-2/train.tsv and 13" if there else "CoLA/train.tsv and 15"
    with pytest.raises(
        DataError, match=rf"fig4 needs GLUE, and .* lacks {first} more files: --data names GLUE's folder"
    ):
        setup.check(("model", "data"), "fig4")


def test_a_model_of_the_other_kind_is_refused() -> None:
    swapped = Setup(scale("tiny"), Path("out"), model=embedded.path("t5"), t5=embedded.path())
    with pytest.raises(CheckpointError, match="writes, and fig4 needs a model with a head: --model names"):
        swapped.check(("model",), "fig4")
    with pytest.raises(CheckpointError, match="answers by a head, and fig2 needs one that writes: --t5 names"):
        swapped.check(("t5",), "fig2")


def test_the_published_sizes_are_what_the_paper_says() -> None:
    assert scale("paper").t5.whole == pytest.approx(1.0e9, rel=0.05)
    assert scale("paper").t5.dense == pytest.approx(220e6, rel=0.05)
