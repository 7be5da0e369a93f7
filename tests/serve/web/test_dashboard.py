from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from serve.web.fake import TASKS, FakeService
from serve.web.live import ADMIN_TOKEN, BOTH, TOKEN, client, live
from tanbr.serve.web.auth import Tokens

COLOURS = """id => [...document.querySelectorAll(`#${id} .legend li`)].map(
    li => [li.textContent.split(" ").slice(0, -1).join(" "), getComputedStyle(li.querySelector("rect")).fill])"""
FILLS = "shapes => shapes.map(shape => getComputedStyle(shape).fill)"


Open = Callable[..., AbstractContextManager[Page]]  # the fixture `opened`


@pytest.fixture
def opened(browser: Browser) -> Open:
    """Open the page of a server; in the end it must have had no error, and have asked nobody else for anything."""

    @contextmanager
    def made(
        url: str, *, width: int = 1280, scheme: Any = "light", more: dict[str, Any] | None = None
    ) -> Iterator[Page]:
        def add(route: Route) -> None:  # `more`, to what the server says of its state
            answer = route.fetch()
            route.fulfill(response=answer, json=answer.json() | (more or {}))

        problems = list[str]()
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if "Content Security" in said.text else None)
        page.on("request", lambda request: None if request.url.startswith(url) else problems.append(request.url))
        if more is not None:
            page.route("**/v1/state", add)
        page.goto(url)
        yield page
        page.close()
        assert not problems

    return made


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")], ids=["phone", "desktop"])
def test_the_page_shows_the_server(opened: Open, width: int, scheme: str) -> None:
    service = FakeService()
    with live(service) as url, client(url) as http, opened(url, width=width, scheme=scheme) as page:
        http.post("/v1/classify", json={"inputs": ["a", "b"]})
        page.reload()
        expect(page.locator("#status")).to_have_text("live")
        expect(page).to_have_title("tanbr · fake")
        expect(page.locator("#slot")).to_have_text("30")
        expect(page.locator("#mix path.area")).to_have_count(3)  # a task each
        expect(page.locator("#blend path.area")).to_have_count(4)  # an expert each
        expect(page.locator("#mix .legend li").first).to_contain_text("mood")
        expect(page.locator("#blend .legend li").last).to_contain_text("expert 4")  # a name, not a number
        expect(page.locator("#phase")).to_have_text("learning")
        expect(page.locator("#why-sentence")).to_have_text("It promises most for the mix at hand.")
        expect(page.locator("#check")).to_be_hidden()  # there was none
        expect(page.get_by_role("img", name="texts a second")).to_be_visible()
        assert sum(window["texts"] for window in http.get("/v1/latency").json()["windows"]) == 2
        expect(page.locator("#rewards path.line")).to_have_count(1)
        ticks = page.locator("#regrets svg text[text-anchor=end]").all_text_contents()
        assert ticks[:5] == ["0.000", "0.005", "0.010", "0.015", "0.020"]
        expect(page.get_by_role("img", name="latency")).to_be_visible()
        expect(page.locator("#versions tbody tr")).to_have_count(4)
        expect(page.locator("#versions tr.refused td").first).to_have_text("1 · refused")
        expect(page.locator("#alarms li")).to_contain_text("the mix <drifts>")  # text, not markup
        expect(page.locator("#events li")).to_contain_text("slot 7")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # no sideways scrolling
        page.hover("#mix svg", position={"x": width // 4, "y": 80})
        expect(page.locator("#mix .tip")).to_contain_text("slot")
        service.version = 2
        expect(page.locator("#version")).to_have_text("2")  # it follows by itself


@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_which_model_serves_what_and_what_the_self_check_found_are_tables(opened: Open, width: int) -> None:
    service = FakeService()
    service.models = 2
    ways = [
        {"method": "average", "models": 1, "rewards": [0.4, 0.6, 0.2], "bytes": 91_000_000},
        {"method": "regression", "models": 2, "rewards": [0.8, 0.72, 0.81], "bytes": 182_000_000},
    ]
    check = {"tasks": TASKS, "rows": 192, "alone": [0.8, 0.8, 0.8], "alone_bytes": 273_000_000, "ways": ways}
    check |= {"taken": {"method": "regression", "models": 2}, "advice": "give --memory for more models"}
    with live(service) as url, opened(url, width=width, scheme="dark", more={"check": check}) as page:
        expect(page.locator("#version")).to_have_text("3, 2")
        rows = page.locator("#panel tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("mood likeness")
        expect(rows.last).to_contain_text("50% (50% expected)")
        expect(page.locator("#versions tr.served")).to_have_count(2)
        rows = page.locator("#check tbody tr")
        expect(rows).to_have_text([
            "experts alone, told the task273 MB0.800100%",
            "one model, average91 MB0.40050%likeness 0.200",
            "2 models, regression · taken182 MB0.77797%topic 0.720",
        ])  # fmt: skip
        expect(page.locator("#advice")).to_have_text("give --memory for more models")
        expect(page.locator("#check-more")).to_contain_text("192 rows")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_task_and_its_expert_have_one_colour_and_one_place(opened: Open) -> None:
    service = FakeService()
    names = ("expert 1", "likeness", "mood", "topic")  # in another order than the tasks
    service.info = replace(service.info, expert_names=names)
    with live(service) as url, client(url) as http, opened(url) as page:
        expect(page.locator("#status")).to_have_text("live")
        mix, blend = (page.evaluate(COLOURS, figure) for figure in ("mix", "blend"))
        assert [name for name, _ in blend] == [*TASKS, "expert 1"]
        assert blend[:3] == mix
        assert len({colour for _, colour in blend}) == 4
        assert page.locator("#blend path.area").evaluate_all(FILLS) == [colour for _, colour in blend]
        for row, version in enumerate(http.get("/v1/versions").json()["versions"]):
            shown = {name for name, share in zip(names, version["blend"], strict=True) if share > 0}
            bar = page.locator("#versions tbody tr").nth(row).locator("rect")
            assert bar.evaluate_all(FILLS) == [colour for name, colour in blend if name in shown]


def test_a_new_panel_shows_its_only_slot_and_from_how_many_experts_it_saves_memory(opened: Open) -> None:
    service = FakeService(slots=1)
    service.version = 0
    service.info = replace(
        service.info, models=3, loaded_bytes=3 * 91 * 10**6, spare_bytes=91 * 10**6, full_bytes=364 * 10**6
    )
    with live(service) as url, opened(url) as page:
        expect(page.locator("#memory")).to_have_text("273 MB")
        expect(page.locator("#mix path.area").first).to_be_visible()  # it has an extent
        expect(page.locator("#memory-more")).to_have_text("+ 91 MB spare; un‑merged 364 MB; saves from 5 experts on")


@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_practice_is_a_table_of_experts_and_bars_of_gains(opened: Open, width: int) -> None:
    def worth(rows: int, expert: int | None, *rewards: float) -> dict[str, Any]:
        return {"rows": rows, "logged": 90, "expert": expert, "rewards": rewards, "errors": [0.05] * len(rewards)}

    def tried(why: str, gain: float, *blend: float) -> dict[str, Any]:
        return {"slot": 7, "blend": [*blend, *[0.0] * 26], "why": why, "rows": 96, "gain": gain, "error": 0.012}

    service = FakeService()
    names = (*service.info.expert_names, *(f"expert {k}" for k in range(5, 31)))  # thirty of them
    service.info = replace(service.info, expert_names=names)
    tasks = [worth(48, 0, 0.91, *[0.3] * 29), worth(12, 3, *[0.2] * 3, 0.7, *[0.1] * 26), worth(0, None)]
    last = [tried("what would be served", 0.031, 0.5, 0.5, 0, 0), tried("an expert alone", -0.2, 0, 0, 0, 1)]
    more = {"practice": {"exercises": 37, "tasks": tasks, "tried": last}}
    more |= {"gain": {"sentence": "learning is worth +1.8 ± 0.6 points since slot 120"}}
    with live(service) as url, opened(url, width=width, more=more) as page:
        rows = page.locator("#worth tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0).locator("td.own")).to_have_text("0.91 ± 0.05")
        expect(rows.nth(1).locator("td").nth(5)).to_have_class("own")
        expect(rows.nth(2).locator("td").nth(2)).to_have_text("–")  # nothing is known of this task yet
        rows.nth(0).locator("td").last.scroll_into_view_if_needed()  # the thirtieth expert
        expect(rows.nth(0).locator("td").first).to_be_in_viewport()  # beside the task's name
        gains = page.locator("#tried tbody tr")
        expect(gains.nth(0)).to_contain_text("+3.1 ± 1.2")
        expect(gains.nth(1)).to_contain_text("an expert alone100% expert 4")
        won, lost = (gains.nth(row).locator("td:last-child rect").first.bounding_box() for row in (0, 1))
        assert won is not None
        assert lost is not None
        assert lost["width"] > 5 * won["width"]
        assert lost["x"] + lost["width"] == pytest.approx(won["x"], abs=0.5)  # both begin at zero
        expect(page.locator("#gain")).to_have_text("Learning is worth +1.8 ± 0.6 points since slot 120.")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    with live(service) as url, opened(url, width=width, scheme="dark") as page:
        expect(page.locator("#status")).to_have_text("live")
        for view in ("#worth", "#tried", "#gain"):  # nothing is practised, nothing held back
            expect(page.locator(view)).to_be_hidden()


def test_there_are_no_buttons_where_administration_is_off(opened: Open) -> None:
    service = FakeService()
    service.pinned = True
    with live(service, tokens=Tokens()) as url, opened(url) as page:
        expect(page.locator("#status")).to_have_text("pinned")
        expect(page.locator("#versions tbody tr")).to_have_count(4)
        expect(page.locator("button:visible")).to_have_count(0)
        expect(page.locator("#steering")).to_contain_text("administration is off")


def test_an_operator_rolls_back_with_the_token(opened: Open) -> None:
    service = FakeService()
    with live(service, tokens=BOTH) as url, opened(url) as page:
        expect(page.locator("#status")).to_have_text("locked")
        page.fill("#token", TOKEN)
        page.click("#sign-in button")
        expect(page.locator("#status")).to_have_text("live")
        page.locator("#versions tbody tr").nth(1).get_by_text("Roll back").click()
        dialog = page.locator("#confirm")
        expect(dialog).to_contain_text("Roll back to merge version 2?")
        dialog.locator("input").fill("not the right one at all")
        dialog.get_by_text("Do it").click()
        expect(dialog.locator(".wrong")).to_contain_text("send the administration token")
        assert not [call for call in service.calls if call[0] == "rollback"]
        dialog.locator("input").fill(ADMIN_TOKEN)
        dialog.locator("input").press("Enter")  # confirms, and does not cancel
        expect(dialog).to_be_hidden()
        expect(page.locator("#version")).to_have_text("2")
        assert service.calls[-1] == ("rollback", 2)
        expect(page.locator("#versions tr.served td").first).to_have_text("2 · served")
        page.locator("#versions tbody tr").first.get_by_text("Pin").click()
        expect(dialog.locator("input")).to_be_hidden()  # the token is known by now
        dialog.get_by_text("Do it").click()
        expect(page.locator("#status")).to_have_text("pinned")
        page.click("#unpin")
        dialog.get_by_text("Cancel").click()
        expect(dialog).to_be_hidden()
        assert service.pinned
        page.click("#unpin")
        dialog.get_by_text("Do it").click()
        expect(page.locator("#status")).to_have_text("live")
        assert page.evaluate("Object.values(sessionStorage).concat(Object.values(localStorage))") == [TOKEN]
