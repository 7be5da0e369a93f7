from tanbr.serve.web.drive import read_answer
from tanbr.tasks import tiny
from tanbr.tasks.metrics import LabelSpace
from tanbr.tasks.rows import Row


def test_answers_are_scored_by_the_truth() -> None:

    space = LabelSpace(tiny.TASKS)
    rows = [tiny.generate(name, 1, seed=1)[0] for name in ("sentiment", "similarity")]
    right = {"label": space.task("sentiment").labels[int(rows[0].target)]}
    assert read_answer(right, rows[0], space) == rows[0].target
    assert read_answer({"label": "entailment"}, rows[0], space) == -1  # of another task: wrong
    assert read_answer({"label": "x", "grades": {"similarity": rows[1].target}}, rows[1], space) == rows[1].target
    assert space.rewards([Row("sentiment", "x", 1.0)], [-1.0])[0] == 0  # type: ignore[arg-type]
