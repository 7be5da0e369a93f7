"""What the README and the docs show runs: Python blocks as one programme a page, commands against the real CLI."""

import re
import shlex
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from tanbr.cli import app

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


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    shown = set(re.findall(r"make ([a-z]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= shown <= targets
