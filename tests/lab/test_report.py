import json
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from playwright.sync_api import Browser

from lab.test_standings import outcome
from tanbr.lab import pictures
from tanbr.lab.report import write, write_page
from tanbr.lab.standings import Standings


@pytest.fixture
def report(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    runs = [outcome(0, name, rng.uniform(0.4, 0.9, 40)) for name in ("tanbr", "best <per> slot")]
    standings = Standings(runs, ("one", "two"), {0: rng.dirichlet(np.ones(2), 40)})
    return write_page(
        tmp_path / "report.html", standings, title="A & B", command="tanbr demo --seed 1", facts={"slots": "40"},
        about="Rewards.",
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200], ids=["phone", "desktop"])
def test_a_real_browser_shows_it(report: Path, browser: Browser, width: int, scheme: Literal["light", "dark"]) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
    page.goto(report.as_uri())
    assert page.title() == "A & B"
    assert page.locator("svg").count() == 4
    assert page.locator("tbody tr").count() == 2
    assert page.locator("td", has_text="best <per> slot").count() == 1  # escaped, not markup
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # no sideways scrolling
    words = page.locator("svg text").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert min(words) >= 8  # pixels: small, but to be read
    colours = page.evaluate(
        "[document.querySelector('svg text'), document.body].map(one => getComputedStyle(one))"
        ".map((style, i) => i ? style.backgroundColor : style.fill)"
    )
    ink, ground = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert ink < ground if scheme == "light" else ink > ground  # words are drawn in the page's own ink
    assert page.locator(".wide").evaluate("box => box.scrollWidth <= box.clientWidth")  # nor in the table
    assert not problems
    page.close()


def test_one_slot_of_one_method_in_which_a_task_never_came(tmp_path: Path) -> None:
    """What makes NumPy and matplotlib complain; a warning is an error here."""
    lone = Standings([outcome(0, "tanbr", np.array([0.5]))], ("one", "two"), {0: np.array([[1.0, 0.0]])})
    write(tmp_path, lone, command="tanbr simulate", facts={"slots": 1})
    pngs = {f"{name}.png" for name in ("reward", "regret", "mix", "blend")}
    assert {file.name for file in tmp_path.iterdir()} == {"simulate.json", "results.md"} | pngs
    assert json.loads((tmp_path / "simulate.json").read_text())["facts"] == {"slots": 1}


def test_the_dial_has_a_line_for_each_method_and_its_numbers_of_models(tmp_path: Path) -> None:
    rewards = {"best-fixed": 0.5, "best-fixed@2": 0.6, "best-fixed@3": 0.65, "average": 0.4, "tags": 0.7}
    runs = [outcome(0, name, np.full(30, reward)) for name, reward in rewards.items()]
    few = Standings(runs, ("one", "two"), {0: np.tile([0.5, 0.5], (30, 1))})
    [axis] = pictures.dial(few).axes
    drawn = {bars.get_label(): bars.lines[0] for bars in axis.containers}
    assert {name: line.get_xdata().tolist() for name, line in drawn.items()} == {
        "best-fixed": [1, 2, 3], "average": [1], "tags": [2],  # the experts of `outcome` are two
    }  # fmt: skip
    np.testing.assert_allclose(drawn["best-fixed"].get_ydata(), [0.5, 0.6, 0.65])
    write(tmp_path, few, command="tanbr simulate --models 1,2,3", facts={})
    assert (tmp_path / "dial.png").stat().st_size > 1_000
