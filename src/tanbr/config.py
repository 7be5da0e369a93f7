"""Every default of the project, one documented field each; read from TOML, where an unknown key is an error."""

import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tanbr.errors import ConfigError


class Section(BaseModel):
    """A frozen group of settings that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class RouterConfig(Section):
    """How `Tanbr` chooses and learns."""


class MonitorConfig(Section):
    """How the task mix is estimated."""


class Config(Section):
    """The whole configuration, one section per stage."""

    router: RouterConfig = Field(default_factory=RouterConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)


def load(path: str | Path) -> Config:
    """Read a TOML file; anything wrong in it is one `ConfigError`."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return parse(values, source=str(path))


def parse(values: dict[str, Any], *, source: str = "configuration") -> Config:
    """Build a `Config` from nested dictionaries; anything wrong in them is one `ConfigError`."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{where}: {problem['msg']} (got {problem['input']!r})"
    section: type[BaseModel] = Config
    for part in problem["loc"][:-1]:
        section = section.model_fields[str(part)].annotation  # type: ignore[assignment]
    known = list(section.model_fields)
    near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {where!r}; {hint}"
