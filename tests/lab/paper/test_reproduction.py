"""Every part from beginning to end, in its smallest form; the report that comes of it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lab.paper.few import setup
from tanbr.lab.paper import job, report
from tanbr.lab.paper.claim import VERDICTS
from tanbr.lab.paper.cost import Speed
from tanbr.lab.paper.parts import PARTS
from tanbr.lab.paper.reproduction import Reproduction, estimate, missing, reproduce
from tanbr.lab.paper.scale import Setup, scale


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    out = tmp_path_factory.mktemp("paper")
    found = reproduce(list(PARTS.values()), setup(out))
    report.write(found, command="tanbr reproduce all")
    return found


def test_every_part_makes_claims_by_written_rules(done: Reproduction) -> None:
    assert list(done.findings) == list(PARTS)
    for name, findings in done.findings.items():
        assert findings.claims, name
        assert findings.pictures, name
        for claim in findings.claims:
            assert claim.judgement.verdict in VERDICTS
            assert claim.judgement.rule, claim.says
            assert claim.paper, claim.says
            assert claim.ours, claim.says
            assert claim.judgement.verdict != "cannot be tested here" or claim.reason, claim.says


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
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    for part in PARTS.values():
        assert part.title in text
        for claim in done.findings[part.name].claims:
            assert claim.says in text
    pictures = re.findall(r"\]\((pictures/.*?\.png)\)", text)
    assert len(pictures) == sum(len(findings.pictures) for findings in done.findings.values())
    assert all((out / picture).stat().st_size for picture in pictures)


def test_a_report_of_some_parts_says_which_were_not_run(done: Reproduction) -> None:
    few = setup(done.setup.out)
    some = Setup(replace(few.scale, name="small"), few.out)
    told = report.laid_out(reproduce([PARTS["fig6"]], some), command="tanbr reproduce fig6 --scale small")
    assert told["title"] == "The paper, reproduced in part (small): fig6"
    commands = [part["command"] for part in told["not_run"]]
    assert len(commands) == len(PARTS) - 1
    assert "tanbr reproduce table1 --scale small" in commands
    assert "tanbr reproduce fig4 --scale small --model MODEL --data DATA" in commands
    whole = report.laid_out(done, command="tanbr reproduce all")
    assert (whole["title"], whole["not_run"]) == ("The paper, reproduced (tiny)", [])
    assert len(whole["models"]) == 2


def test_the_figures_are_kept_as_json_with_command_seeds_and_commit(done: Reproduction) -> None:
    kept = json.loads((done.setup.out / "results.json").read_text())
    assert kept["commit"] == job.commit()
    assert {part["name"]: part["command"] for part in kept["parts"]} == {
        name: f"tanbr reproduce {name} --scale tiny" for name in PARTS
    }
    claims = {part["name"]: part["claims"] for part in kept["parts"]}
    assert all(claim["seeds"] == [0] for claim in claims["theorem1"])
    assert sum(count for _, _, count in kept["counts"]) == sum(map(len, claims.values()))


def test_nothing_is_measured_twice_and_work_is_cleared_away(done: Reproduction) -> None:
    assert {path.name for path in done.setup.out.iterdir()} == {
        "jobs", "pictures", "report.html", "report.md", "results.json",
    }  # fmt: skip
    assert not any(missing(list(PARTS.values()), done.setup).values())


def test_parts_share_their_runs(done: Reproduction) -> None:
    assert done.jobs["fig2"] == done.jobs["fig3"] == done.jobs["table2"]
    assert set(done.jobs["fig5"]) < set(done.jobs["fig4"])


def test_results_of_another_commit_are_said_to_be_so(done: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    assert done.elsewhere == {}
    there = job.commit()
    for module in ("job", "report", "reproduction"):
        monkeypatch.setattr(f"tanbr.lab.paper.{module}.commit", lambda: "another")
    assert done.elsewhere == {there: list(done.kept)}
    told = report.laid_out(done, command="tanbr reproduce all")
    count = len(done.kept)
    assert told["elsewhere"] == f"{count} of {count} results are of other commits ({count} of {there})"


def test_estimates_grow_with_the_scale_and_need_no_model(tmp_path: Path) -> None:
    speed = Speed(flops=4e10, layer=1e-4)
    parts = list(PARTS.values())
    small, paper = (estimate(parts, Setup(scale(name), tmp_path), speed=speed) for name in ("small", "paper"))
    shared = {"fig3", "table2", "fig5"}  # their runs count where they are needed first
    for one, other in zip(small, paper, strict=True):
        assert (one.missing == 0) == (one.part in shared)
        if one.part not in shared | {"fig6"}:
            assert other.seconds > one.seconds > 0, one.part
    assert not list(tmp_path.iterdir())


def test_what_is_done_is_not_estimated(done: Reproduction) -> None:
    [one] = estimate([PARTS["fig6"]], done.setup, speed=Speed(1e10, 1e-4))
    assert (one.missing, one.seconds) == (0, 0)
    other = Setup(replace(done.setup.scale, experts=(4, 6, 8)), done.setup.out)
    [one] = estimate([PARTS["fig6"]], other, speed=Speed(1e10, 1e-4))
    assert (one.missing, one.jobs) == (1, 3)
