"""Every part from beginning to end, in its smallest form; the report that comes of it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tanbr.errors import CheckpointError
from tanbr.lab.jobs import commit
from tanbr.lab.paper import reproduction
from tanbr.lab.paper.reproduction import PARTS, Reproduction, reproduce
from tanbr.lab.paper.setup import Scale, Setup, scale
from tanbr.lab.simulate import Answered
from tanbr.lab.tasks import tiny
from tanbr.lab.train.config import Tuning
from tanbr.moe import embedded
from tanbr.tasks.rows import Row

FEW: Scale = replace(
    scale("tiny"), seeds=(0,), swept_seeds=(0,),
    tuning=Tuning(steps=3, batch=8, train_rows=16, eval_rows=4, warmup=1, log_every=1, save_every=3),
    served_slots=2, least_answers=1, slots=4, after=2, requests=16, length=8,
    t5={"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 50},
    batches=(1, 4), rounds=1, cell_seconds=0.1, experts=(4, 6), regret_slots=30,
)  # fmt: skip


def setup(out: Path) -> Setup:
    return Setup(FEW, out)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    out = tmp_path_factory.mktemp("paper")
    found = reproduce(list(PARTS.values()), setup(out))
    reproduction.write(found, command="tanbr reproduce all")
    return found


def test_the_report_is_self_contained_and_holds_every_claim(done: Reproduction) -> None:
    out = done.setup.out
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    links: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links.extend(value or "" for name, value in attrs if name in ("href", "src") and tag != "use")

    Links().feed(page)
    assert links
    assert all(link.startswith("#") for link in links)
    for part in PARTS.values():
        assert part.title in text
        for claim in done.findings[part.name].claims:
            assert claim.says in text
    kept = json.loads((out / "results.json").read_text())
    assert kept["commit"] == commit()
    claims = {part["name"]: part["claims"] for part in kept["parts"]}
    assert all(claim["seeds"] == [0] for claim in claims["theorem1"])
    assert sum(count for _, _, count in kept["counts"]) == sum(map(len, claims.values()))
    pictures = re.findall(r"\]\((pictures/.*?\.png)\)", text)
    assert len(pictures) == sum(len(findings.pictures) for findings in done.findings.values())
    assert all((out / picture).stat().st_size for picture in pictures)


def test_a_report_of_some_parts_says_which_were_not_run(done: Reproduction) -> None:
    few = setup(done.setup.out)
    some = Setup(replace(few.scale, name="small"), few.out)
    told = reproduction.laid_out(reproduce([PARTS["fig6"]], some), command="tanbr reproduce fig6 --scale small")
    assert told["title"] == "The paper, reproduced in part (small): fig6"
    commands = [part["command"] for part in told["not_run"]]
    assert len(commands) == len(PARTS) - 1
    assert "tanbr reproduce table1 --scale small" in commands
    assert "tanbr reproduce fig4 --scale small --model MODEL --data DATA" in commands
    whole = reproduction.laid_out(done, command="tanbr reproduce all")
    assert (whole["title"], whole["not_run"]) == ("The paper, reproduced (tiny)", [])
    assert len(whole["models"]) == 2


def test_nothing_is_measured_twice_and_work_is_cleared_away(done: Reproduction) -> None:
    assert {path.name for path in done.setup.out.iterdir()} == {
        "jobs", "pictures", "report.html", "report.md", "results.json",
    }  # fmt: skip
    assert set(done.jobs["fig5"]) < set(done.jobs["fig4"])
    run: list[str] = []

    def finished(name: str, _: object, was_there: bool) -> None:
        if not was_there:
            run.append(name)

    other = Setup(replace(done.setup.scale, experts=(4, 6, 8)), done.setup.out)
    reproduce([PARTS["fig6"], PARTS["fig5"]], other, finished=finished)
    assert run == ["fig6-8"]


def test_a_model_of_the_other_kind_is_refused() -> None:
    swapped = Setup(scale("tiny"), Path("out"), model=embedded.path("t5"), t5=embedded.path())
    with pytest.raises(CheckpointError, match="writes, and fig4 needs a model with a head: --model names"):
        swapped.check(("model",), "fig4")
    with pytest.raises(CheckpointError, match="answers by a head, and fig2 needs one that writes: --t5 names"):
        swapped.check(("t5",), "fig2")


def test_a_task_that_hardly_came_has_no_metric() -> None:
    answered = Answered(tiny.TASKS)
    for task in tiny.TASKS:
        count = 2 if task.name == "similarity" else 5  # two rows correlate by -1, whatever the model is worth
        answered([Row(task.name, "x", float(i % 2)) for i in range(count)], np.array([1.0, 0.0, 1.0, 0.0, 1.0])[:count])
    assert set(answered.figures(least=3)) == {task.name for task in tiny.TASKS} - {"similarity"}
    assert answered.figures(least=2)["similarity"] == -1.0
