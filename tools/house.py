"""Print the project's size beside its budgets, and find what linters do not. `make check` runs it; excess exits with 1.

Budgets stand in pyproject.toml under [tool.tanbr.budgets]. Lines are those of `wc -l`: blank ones and comments count.
A budget may be raised only in a commit that says what it bought.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tanbr.cli import app
from tanbr.config import Section
from tanbr.lab.settings import Config

ROOT = Path(__file__).parent.parent
TEXT = {".cff", ".css", ".html", ".js", ".json", ".md", ".py", ".service", ".sh", ".toml", ".txt", ".yaml", ".yml"}
MACHINE = re.compile(
    r"(?<![\w.~])/(?:work|root|Users|home/(?!me\b|user\b)\w+)/"  # a place that only the author's machine has
    r"|--(?:extra-)?index-url|https?://[^\s/]+/(?:artifactory|nexus|simple)\b"  # where the author installs from
)
ODD = re.compile(  # words that a reader stops at, found in reviews
    r"\b(?:whoever|bearers|doorstep|foretells?|amid it|of one piece|turns? his coat|lineup|manner)\b", re.IGNORECASE
)


def main() -> int:
    """Print every measure; the exit code."""
    budgets: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tanbr"]["budgets"]
    files = tracked()
    settings = list(fields(Config))
    pages = "\n".join(text for path, text in files.items() if path.startswith("docs/") and path.endswith(".md"))
    unnamed = [name for name in settings if not named(name, pages)]
    machine = list(found(MACHINE, files))
    odd = list(found(ODD, {path: text for path, text in files.items() if path.startswith("src/")}))
    seen = {  # measure → where each of it is
        "settings": settings,
        "settings that no page of docs names": unnamed,
        "commands": list(typer.main.get_command(app).commands),  # type: ignore[attr-defined]
        "places of a machine in text": machine,
        "odd words": odd,
    }
    if missing := seen.keys() - budgets.keys():
        sys.exit(f"pyproject.toml has no budget for {', '.join(sorted(missing))}")
    too_much = False
    for name, budget in budgets.items():
        size = len(seen[name]) if name in seen else lines(name, files)
        print(f"{size:7,} of {budget:7,}  {name}{'  TOO MUCH' if size > budget else ''}")
        if size > budget:
            too_much = True
            print(*(f"    {place}" for place in seen.get(name, ())), sep="\n")
    return int(too_much)


def tracked() -> dict[str, str]:
    """Read the text files that git knows; CHANGELOG and stored results are history."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if Path(name).suffix in TEXT or Path(name).name == "Makefile"]
    names = [name for name in names if not name.startswith(("docs/results/", "CHANGELOG", "tools/house.py"))]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}


def lines(folder: str, files: dict[str, str]) -> int:
    """Count the lines of Python in a folder, or in its own files (folder/*.py); "core" is the package without lab."""
    if folder == "core":
        return lines("src/tanbr", files) - lines("src/tanbr/lab", files)
    if folder.endswith("/*.py"):
        chosen = [
            text for path, text in files.items() if Path(path).match(folder) and path.count("/") == folder.count("/")
        ]
    else:
        chosen = [text for path, text in files.items() if path.startswith(f"{folder}/") and path.endswith(".py")]
    return sum(text.count("\n") for text in chosen)


def fields(section: type[Section], within: str = "") -> Iterator[str]:
    """Give the name of every setting, as serve.rewards.labels."""
    for name, field in section.model_fields.items():
        inner: Any = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from fields(inner, f"{within}{name}.")
        else:
            yield within + name


def named(setting: str, pages: str) -> bool:
    """Whether a page has the setting's name as code, as a line of TOML, or as an option."""
    last = re.escape(setting.rpartition(".")[2])
    option = re.escape(setting.rpartition(".")[2].replace("_", "-"))
    return re.search(rf"`[^`\n]*\b{last}\b[^`\n]*`|^\s*{last} = |\b{last} = |--{option}\b", pages, re.M) is not None


def found(pattern: re.Pattern[str], files: dict[str, str]) -> Iterator[str]:
    """Give each line that matches, with its place."""
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if match := pattern.search(line):
                yield f"{path}:{number}: {match[0]!r}"


if __name__ == "__main__":
    sys.exit(main())
