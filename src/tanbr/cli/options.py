"""Options of commands: made from the fields of a section of settings, or written once for several commands."""

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typer import Argument, Option

from tanbr.config import Section
from tanbr.errors import InputError
from tanbr.lab.tasks.traffic import KINDS

COMMON, ADVANCED = "Common", "Advanced"  # panels of a command's help
Given = dict[str, Any]  # the fields of a section that the user gave on the command line

Checkpoint = Annotated[Path | None, Argument(help="Folder of an MoE, or a list of experts. Default: the embedded one.")]
MergeMethod = Annotated[
    str | None, Option(help="average, regression, ties:density=0.3, … Default: the list's, or average.")
]
Data = Annotated[Path | None, Option(help="GLUE's folder, or files of yours. Default: the generated tasks.")]
Tagged = Annotated[bool, Option("--tagged", help="T5 only: texts name their task, as in the paper.")]
Device = Annotated[str, Option(help="Torch device that models run on, as cuda or cuda:1.")]
ConfigFile = Annotated[Path | None, Option("--config", help="TOML file of settings that differ from the defaults.")]
Slots = Annotated[int, Option(min=1, help="Number of slots.")]
Requests = Annotated[int, Option(min=1, help="Requests in a slot.")]
Kind = Annotated[str, Option("--traffic", help=f"How the task mix moves: {', '.join(KINDS)}.")]
Alpha = Annotated[float, Option(help="How even the mixes are; a small value means one task at a time.")]
Period = Annotated[int, Option(min=1, help="Slots from one drawn mix to the next.")]
Seed = Annotated[int, Option(min=0, help="Seed of everything that is drawn.")]


def examples(*lines: str) -> str:
    """Lay out the examples at the end of a command's help."""
    return "\n\n".join(["Examples:", *(f"    {line}" for line in lines)])


def options_of(
    section: type[Section], into: str, fields: str = "", *, common: str = "", advanced: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each field that is named here, with the field's name, type and help.

    Its parameter `into` gets what the user gave, by field. `common` and `advanced` are panels of the help.
    """
    panels = {None: fields, COMMON: common, ADVANCED: advanced}
    made = [_parameter(section, name, panel) for panel, names in panels.items() for name in names.split()]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(**values: Any) -> Any:
            given = {one.name: _value(section, one.name, values.pop(one.name)) for one in made}
            return command(**values, **{into: {name: value for name, value in given.items() if value is not None}})

        signature = inspect.signature(command)
        own = [one.replace(kind=one.KEYWORD_ONLY) for one in signature.parameters.values() if one.name != into]
        run.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*own, *made)}
        return run

    return decorate


def _parameter(section: type[Section], name: str, panel: str | None) -> inspect.Parameter:
    about = section.model_fields[name]
    kinds = list(_kinds(about.annotation))
    kind: Any = kinds[0] if len(kinds) == 1 else str
    flag, meta, words, skip = f"--{name.replace('_', '-')}", None, "", ""
    if kind == tuple[str, ...]:
        kind, flag, meta = list[str], flag.removesuffix("s"), "<str>"  # given once for each: --expert a/ --expert b/
    elif get_origin(kind) is Literal:
        words, meta = f" ({', '.join(get_args(kind))})", "<word>"
    elif kind is bool and about.default:
        flag, skip = f" /--no-{name.replace('_', '-')}", "Do not "
    elif kind is bool and NoneType in get_args(about.annotation):
        flag += f"/--no-{name.replace('_', '-')}"
    elif kind is not bool:
        kind = kind if kind in (int, float, Path) else str
        meta = f"<{kind.__name__.lower()}>"
    default = about.default if isinstance(about.default, int | float | str | Path) and kind is not bool else None
    clause = _first_clause(about.description)
    clause = skip + clause[0].lower() + clause[1:] if skip else clause
    said = f"{clause}{words}.{'' if default is None else f' Default: {default}.'}"
    option = Option(flag, help=said, metavar=meta, rich_help_panel=panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _first_clause(text: str | None) -> str:
    """Take what help has room for: a docstring up to its first semicolon or sentence; `tanbr config` shows it whole."""
    return re.split(r"[;.:](?:\s|$)", " ".join((text or "").split()), maxsplit=1)[0]


def _kinds(annotation: Any) -> Iterator[Any]:
    """Give the types that a field may have, besides None."""
    if get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _kinds(one)
    elif get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif annotation is not NoneType:
        yield annotation


def _value(section: type[Section], name: str, given: Any) -> Any:
    if isinstance(given, list):
        return tuple(given) or None
    if isinstance(given, str) and tuple[float, ...] in _kinds(section.model_fields[name].annotation):
        try:
            return tuple(float(word) for word in given.split(","))
        except ValueError:
            return given  # one of the field's words, or refused with them
    return given


def whole_numbers(text: str, option: str, *, least: int = 0) -> list[int]:
    """Read an option that takes several numbers, as 0,3; a number that is repeated counts once."""
    try:
        numbers = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise InputError(f"{option} must be whole numbers from {least}, as {least},{least + 1} (got {text!r})")
    return numbers


def command_line() -> str:
    """Give the command as it was typed, without the places of this machine."""
    words = [word.rstrip("/").rsplit("/", 1)[-1] if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["tanbr", *words])
