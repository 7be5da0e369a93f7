"""What the README and the docs show runs: Python blocks as one programme a page, commands against the real CLI."""

import os
import re
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

import tanbr
from tanbr.cli import app
from tanbr.lab.settings import Config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [page.name for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


def test_the_commands_of_the_tutorial_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "tutorial.md"
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks(page, "python")[:4]:  # experts, rows, training, list
        exec(compile(block, page.name, "exec"), namespace)
    lines = [line for line in "\n".join(blocks(page, "sh")).splitlines() if line and not line.startswith("tanbr serve")]
    assert len(lines) >= 4
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{line}: {done.output}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_exist_with_their_options(page: Path) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    for line in "\n".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line.split("#")[0])
        if words[:1] != ["tanbr"] or len(words) < 2:
            continue
        command = group.commands.get(words[1])  # type: ignore[union-attr]
        assert command is not None, f"{page.name} shows `tanbr {words[1]}`, which does not exist"
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        shown = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
        assert shown <= known, f"{page.name}: `{line}` has unknown options {shown - known}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_site_is_built_so_that_warnings_stop_it() -> None:
    build = re.search(r"mkdocs build (.*) &&", (ROOT / "Makefile").read_text())
    assert build is not None
    assert build[1].split() == ["--strict"]  # with --quiet a broken link is no warning, so nothing stops


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    shown = set(re.findall(r"make ([a-z]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= shown <= targets


@cache
def generate() -> dict[str, Any]:
    before = dict(os.environ)  # it sets up a terminal of 100 columns for itself
    try:
        return runpy.run_path(str(ROOT / "docs" / "reference" / "generate.py"))
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_every_page_is_in_the_navigation() -> None:
    shown = re.findall(r"^ +- (?:.*: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    docs = ROOT / "docs"
    there = {path.relative_to(docs).as_posix() for path in (*docs.glob("*.md"), *(docs / "reference").glob("*.md"))}
    assert len(shown) == len(set(shown))
    assert set(shown) == there


def test_the_reference_has_every_public_name() -> None:
    shown = (ROOT / "docs" / "reference" / "python.md").read_text()
    for name in tanbr.__all__:
        assert re.search(rf"^::: tanbr\.(\w+\.)?({name}|errors)$", shown, flags=re.MULTILINE), name


def test_the_reference_has_every_field_of_the_configuration_with_what_it_means() -> None:
    page = generate()["configuration"]()
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.*) \|$", page, flags=re.MULTILINE)

    def fields(section: Any) -> int:
        inner = [getattr(field.annotation, "model_fields", None) for field in section.model_fields.values()]
        return sum(1 if one is None else fields(field.annotation)
                   for one, field in zip(inner, section.model_fields.values(), strict=True))  # fmt: skip

    assert len(rows) == fields(Config)
    assert [name for name, _, meaning in rows if not meaning.strip()] == []


def test_the_gallery_shows_every_example() -> None:
    page = generate()["examples"]()
    examples = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".ipynb")]
    assert len(examples) >= 3
    for path in examples:
        title = f"## {path.relative_to(ROOT / 'examples')}"
        assert title in page
        assert page.split(title)[1].strip().splitlines()[0].strip(), f"{path.name} does not say what it shows"


@pytest.mark.parametrize(
    ("page", "address"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', "//fonts.example/a.css"),
        ("<style>@font-face { src: url(https://fonts.example/a.woff2) }</style>", "https://fonts.example/a.woff2"),
    ],
)
def test_what_a_page_of_the_site_loads_is_found(page: str, address: str) -> None:
    assert list(generate()["loaded"](page)) == [address]


def test_links_of_the_site_are_not_loaded() -> None:
    page = '<a href="https://x.example">x</a><link rel="canonical" href="https://x.example">'
    assert list(generate()["loaded"](page)) == []


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    for name, pattern in {"CITATION.cff": r"^version: (.*)$", "pyproject.toml": r'^version = "(.*)"$'}.items():
        assert re.findall(pattern, (ROOT / name).read_text(), flags=re.MULTILINE) == [tanbr.__version__], name


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
