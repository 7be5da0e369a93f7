"""What every section of the configuration is made of. A section lives beside what it configures (`*/config.py`)."""

import difflib
import reprlib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tanbr.errors import ConfigError, SettingsError


class Section(BaseModel):
    """A frozen group of settings, one documented field each, that refuses what it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _tuples(cls, value: Any) -> Any:
        """Make tuples of lists, which is all that TOML and YAML have."""
        return tuple(map(cls._tuples, value)) if isinstance(value, list) else value


Settings = TypeVar("Settings", bound=Section)


def read(section: type[Settings], values: Mapping[str, Any], *, source: str = "configuration") -> Settings:
    """Build a section from nested mappings; anything wrong in them is one `ConfigError`."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_first_problem(section, error)}") from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply; a setting is a value in a section") from None


def read_toml(path: str | Path, *, what: str) -> dict[str, Any]:
    """Read a TOML file; anything wrong in it is one `ConfigError`, which says `what` it should be."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}") from None
    except ValueError as error:  # no UTF-8, no TOML, or a number of too many digits
        raise ConfigError(f"{path} is not TOML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply; a setting is a value in a section") from None


def check_kept(
    saved: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    source: str | Path,
    may_change: Collection[str] = (),
    within: str = "",
) -> None:
    """Refuse what is asked for of a saved state and differs from what it was made with, but for what may change."""
    for name, value in asked.items():
        place, old = within + name, saved.get(name, value)  # what an earlier version did not know was as it is now
        if place in may_change:
            continue
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            check_kept(old, value, source=source, may_change=may_change, within=f"{place}.")
        elif old != value:
            setting, was, now = place.removeprefix("config."), reprlib.repr(old), reprlib.repr(value)
            raise SettingsError(
                f"{source} was made with {setting} = {was}, and cannot go on with {now}; set it back, give another "
                "--state, or --adopt to keep what was learned as a prior"
            )


def check_method(text: str, *, source: str) -> None:
    """Refuse a merge method `package.module:Class` in a file: an import runs code, and files come from strangers."""
    if sum("=" not in part for part in text.split(":")) > 1:
        raise ConfigError(
            f"{source}: method must be the name of a merge method (got {reprlib.repr(text)}); name a "
            "class of a module with --method instead"
        )


def _first_problem(section: type[BaseModel], error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        try:
            got = reprlib.repr(problem["input"])
        except ValueError:  # Python writes no integer of more than 4,300 digits
            got = "a number with thousands of digits"
        return f"{where}: {problem['msg']} (got {got})"
    for part in problem["loc"][:-1]:  # a number is the place in a list of sections
        kind: Any = get_args(section)[0] if isinstance(part, int) else section.model_fields[part].annotation
        section = kind
    known = list(section.model_fields)
    near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {where!r}; {hint}"
