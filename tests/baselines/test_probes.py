from pathlib import Path

import pytest

from tanbr.baselines.probes import head_probes
from tanbr.errors import DataError
from tanbr.merge import open as open_moe
from tanbr.moe.embedded import path
from tanbr.tasks import tiny
from tanbr.tasks.metrics import LabelSpace

ROWS = {task.name: tiny.generate(task.name, 3 + place, seed=0) for place, task in enumerate(tiny.TASKS)}


def test_an_experts_rows_are_those_of_its_own_task_wherever_the_task_stands() -> None:
    own = [7, 6, 5, 4, 3, 2, 1, 0]
    probes = head_probes(open_moe(Path(path())), ROWS, space=LabelSpace(tiny.TASKS), own=own, batch=64)
    assert [len(batches[0].inputs["input_ids"]) for batches in probes] == [10, 9, 8, 7, 6, 5, 4, 3]


@pytest.mark.parametrize("own", [(), (0, 1), (0, 1, 2, 3, 4, 5, 6, 8)])
def test_a_map_that_does_not_fit_is_refused(own: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="each of the 8 tasks needs its own expert"):
        head_probes(open_moe(Path(path())), ROWS, space=LabelSpace(tiny.TASKS), own=own)
