"""Pages of the site that are made from the code: every command's help, every field of the configuration, examples."""

import ast
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

os.environ.setdefault("COLUMNS", "100")
os.environ.setdefault("NO_COLOR", "1")
os.environ.setdefault("TERM", "dumb")

import typer
from mkdocs.exceptions import PluginError
from pydantic import BaseModel
from typer.testing import CliRunner

from tanbr.cli import app
from tanbr.lab.settings import Config

EXAMPLES = Path(__file__).parents[2] / "examples"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what the code says in the place of its mark."""
    made = {"commands": commands, "configuration": configuration, "examples": examples}
    for name, make in made.items():
        if (mark := f"<!-- {name} -->") in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Refuse a site that would load something from a network."""
    for path in sorted(Path(config["site_dir"]).rglob("*.html")):
        for address in loaded(path.read_text(encoding="utf-8")):
            if re.match(r"(https?:)?//", address):
                raise PluginError(f"{path} loads {address}; the site must be readable without a network")


def loaded(page: str) -> Iterator[str]:
    """Give the addresses of all that a browser loads for a page: scripts, styles, pictures, frames."""
    found: list[str] = []

    class Loaded(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = {name: value or "" for name, value in attrs}
            if tag in ("script", "img", "iframe", "source", "audio", "video"):
                found.append(values.get("src", ""))
            if tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "alternate"):
                found.append(values.get("href", ""))

    Loaded().feed(page)
    yield from found
    yield from re.findall(r"url\(['\"]?([^'\")]+)", page)


def commands() -> str:
    """Show the help of every command, as a terminal of 100 columns does."""
    group: Any = typer.main.get_command(app)
    names = [name for name, command in group.commands.items() if not command.hidden]
    pages = {name: CliRunner().invoke(app, [name, "--help"]).output for name in names}
    return "\n".join(f"## tanbr {name}\n\n```text\n{page.strip()}\n```\n" for name, page in pages.items())


def configuration() -> str:
    """List every section's fields with their defaults."""
    return "\n".join(_sections(Config, ""))


def examples(folder: Path = EXAMPLES) -> str:
    """Show every programme in `examples/` under what its first line says of it."""
    parts = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        parts.append(f"## {path.relative_to(folder)}\n\n{about}\n\n```python\n{source.strip()}\n```\n")
    for path in sorted(folder.rglob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        shown = [_cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        parts.append(f"## {path.relative_to(folder)}\n\n" + "\n\n".join(shown) + "\n")
    return "\n".join(parts)


def _cell(kind: str, source: str) -> str:
    if kind == "code":
        return f"```python\n{source.strip()}\n```"
    return re.sub(r"^#+ (.*)$", r"**\1**", source, flags=re.MULTILINE)  # its headings are not the page's


def _sections(section: type[BaseModel], path: str) -> list[str]:
    plain = {name: field for name, field in section.model_fields.items() if not _section(field.annotation)}
    parts = []
    if plain:
        rows = [f"| `{name}` | `{_shown(field)}` | {_line(field.description)} |" for name, field in plain.items()]
        title = f"## `[{path}]`" if path else "## At the top"
        parts.append(
            "\n".join([title, "", _line(section.__doc__), "", "| field | default | |", "|---|---|---|", *rows, ""])
        )
    for name, field in section.model_fields.items():
        inner = _section(field.annotation)
        if inner is not None:
            parts += _sections(inner, f"{path}.{name}" if path else name)
    return parts


def _section(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _shown(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    return "not set" if value is None else str(value).replace("|", "\\|")


def _line(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip().replace("|", "\\|")
