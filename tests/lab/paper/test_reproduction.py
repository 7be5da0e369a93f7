"""Every part from beginning to end, in its smallest form; the report that comes of it."""

import json
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lab.paper.few import setup
from tanbr.lab.jobs import Job, Tick, commit
from tanbr.lab.paper import reproduction, theorem1
from tanbr.lab.paper.claim import VERDICTS, Findings, Part
from tanbr.lab.paper.reproduction import PARTS, Reproduction, chosen, missing, reproduce
from tanbr.lab.paper.setup import Setup


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    out = tmp_path_factory.mktemp("paper")
    found = reproduce(list(PARTS.values()), setup(out))
    reproduction.write(found, command="tanbr reproduce all")
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
    told = reproduction.laid_out(reproduce([PARTS["fig6"]], some), command="tanbr reproduce fig6 --scale small")
    assert told["title"] == "The paper, reproduced in part (small): fig6"
    commands = [part["command"] for part in told["not_run"]]
    assert len(commands) == len(PARTS) - 1
    assert "tanbr reproduce table1 --scale small" in commands
    assert "tanbr reproduce fig4 --scale small --model MODEL --data DATA" in commands
    whole = reproduction.laid_out(done, command="tanbr reproduce all")
    assert (whole["title"], whole["not_run"]) == ("The paper, reproduced (tiny)", [])
    assert len(whole["models"]) == 2


def test_the_figures_are_kept_as_json_with_command_seeds_and_commit(done: Reproduction) -> None:
    kept = json.loads((done.setup.out / "results.json").read_text())
    assert kept["commit"] == commit()
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
    assert set(done.jobs["fig5"]) < set(done.jobs["fig4"])
    other = Setup(replace(done.setup.scale, experts=(4, 6, 8)), done.setup.out)
    assert [one.name for one in missing([PARTS["fig6"]], other)["fig6"]] == ["fig6-8"]


def test_an_interrupted_run_keeps_what_was_done(tmp_path: Path) -> None:
    ran: list[str] = []

    def part(*names: str, stop: str = "") -> Part:
        def work(name: str, _: Tick) -> str:
            ran.append(name)
            if name == stop:
                raise KeyboardInterrupt
            return name

        jobs = [Job(name, partial(work, name), {}) for name in names]
        return Part("a", "A", "", lambda _: jobs, lambda _, results: Findings([], pictures=dict(results)))

    with pytest.raises(KeyboardInterrupt):
        reproduce([part("one", "two", "three", stop="two")], setup(tmp_path))
    heard: list[tuple[str, object]] = []
    parts = [part("one", "two", "three", "one")]
    reproduce(parts, setup(tmp_path), finished=lambda name, kept: heard.append((name, kept.result)))
    assert ran == ["one", "two", "two", "three"]
    assert heard == [("two", "two"), ("three", "three")]


def test_results_of_another_commit_are_said_to_be_so(done: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    assert done.of_others == ""
    there = commit()
    monkeypatch.setattr("tanbr.lab.jobs.commit", lambda: "another")
    told = reproduction.laid_out(done, command="tanbr reproduce all")
    count = len(done.kept)
    assert told["elsewhere"] == f"{count} of {count} results are of other commits ({count} of {there})"


def test_parts_come_in_the_papers_order() -> None:
    assert [part.name for part in chosen(["fig4", "table1"])] == ["table1", "fig4"]
    assert [part.name for part in chosen([])] == [part.name for part in chosen(["all", "fig4"])] == list(PARTS)


def test_regret_is_compared_with_chance_and_with_the_bounds(tmp_path: Path) -> None:
    found = {}
    for job in theorem1.jobs(setup(tmp_path)):
        if "K4-V8" in job.name:
            found[job.facts["router"]] = job.run(lambda *_: None)
    assert found["tanbr"]["late_regret"] < found["random"]["late_regret"]
    assert found["paper"]["depth"] <= found["paper"]["depth_bound"] + 1
    assert found["paper"]["leaves"] <= found["paper"]["leaves_bound"]
    assert found["paper"]["bound_exponent"] == pytest.approx(1.0, abs=1e-3)  # it grows like its bare T
