"""What the README and the docs show runs: Python blocks as one programme a page, commands against the real CLI."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import tanbr
from tanbr.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text()]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
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
    alone = ("tanbr serve", "tanbr traffic")  # these two need each other
    lines = [line for line in "\n".join(blocks(page, "sh")).splitlines() if line and not line.startswith(alone)]
    assert len(lines) >= 4
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{line}: {done.output}"


def test_commands_exist_with_their_options() -> None:
    group = typer.main.get_command(app)
    lines = [(page, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    for page, line in lines:
        words = shlex.split(line.split("#")[0])
        if words[:1] != ["tanbr"] or len(words) < 2:
            continue
        command = group.commands.get(words[1])  # type: ignore[attr-defined]
        assert command is not None, f"{page.name} shows `tanbr {words[1]}`, which does not exist"
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        shown = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
        assert shown <= known, f"{page.name}: `{line}` has unknown options {shown - known}"


def test_links_between_pages_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())]
    for page, target in links:
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_pages_that_are_made_from_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "TERM"):  # it sets up a terminal of 100 columns for itself
        monkeypatch.delenv(name, raising=False)
    made = runpy.run_path(str(ROOT / "docs" / "reference" / "generate.py"))
    settings = re.findall(r"^\| `(\w+)` \| `.*?` \| (.*) \|$", made["configuration"](), flags=re.MULTILINE)
    assert len(settings) > 50
    assert all(meaning.strip() for _, meaning in settings)
    assert "## tanbr serve" in made["commands"]()
    for path in [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".ipynb")]:
        assert f"## {path.relative_to(ROOT / 'examples')}" in made["examples"]()


def test_the_reference_has_every_public_name() -> None:
    shown = (ROOT / "docs" / "reference" / "python.md").read_text()
    for name in tanbr.__all__:
        assert re.search(rf"^::: tanbr\.(\w+\.)?({name}|errors)$", shown, flags=re.MULTILINE), name


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    for name, pattern in {"CITATION.cff": r"^version: (.*)$", "pyproject.toml": r'^version = "(.*)"$'}.items():
        assert re.findall(pattern, (ROOT / name).read_text(), flags=re.MULTILINE) == [tanbr.__version__], name
