import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from playwright.sync_api import Browser

from tanbr.lab.compare import Comparison
from tanbr.lab.report import write_report
from tanbr.router import Tanbr
from tanbr.types import SlotRecord


@pytest.fixture
def report(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.ones(3), 40)
    router = Tanbr(4, 3, seed=0)
    records: dict[str, list[SlotRecord]] = {"tanbr": [], "best <per> slot": []}
    for slot, mix in enumerate(mixes):
        decision = router.ask(mix)
        reward = rng.uniform(0.4, 0.9, 3)
        router.tell(decision, reward)
        for rows in records.values():
            rows.append(SlotRecord(slot, slot, mix, decision.blend, reward, np.full(3, 4.0)))
    result = Comparison(mixes, records, best="best <per> slot")
    return write_report(
        tmp_path / "report.html", result, title="A & B", command="tanbr demo --seed 1", facts=[("slots", "40")],
        tasks=["one", "two", "three"], tree=router.tree, tail=10,
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
    assert page.locator("svg").count() == 5
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
