"""The whole configuration: one section a stage, read from TOML, where an unknown key is an error."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from tanbr.config import Section, check_method, read, read_toml
from tanbr.errors import ConfigError
from tanbr.lab.train.config import FinetuneConfig, PretrainConfig
from tanbr.monitor.config import MonitorConfig
from tanbr.router.config import RouterConfig
from tanbr.serve.config import ServeConfig
from tanbr.serve.web.config import HttpConfig


class Config(Section):
    """Every default of the project."""

    router: RouterConfig = Field(default_factory=RouterConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    pretrain: PretrainConfig = Field(default_factory=PretrainConfig)
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)
    http: HttpConfig = Field(default_factory=HttpConfig)


def load(path: str | Path | None, *, over: Config | None = None) -> Config:
    """Lay a TOML file over the defaults, or `over` others, field by field; anything wrong in it is a `ConfigError`."""
    base = over or Config()
    if path is None:
        return base
    values = read_toml(path, what="the configuration")
    alone = parse(values, source=str(path))  # what is wrong is said as the file has it
    check_method(alone.serve.method or "average", source=str(path))
    return parse(_laid_over(base.model_dump(exclude_unset=True), values), source=str(path))


def parse(values: dict[str, Any], *, source: str = "configuration") -> Config:
    """Build a `Config` from nested dictionaries; anything wrong in them is one `ConfigError`."""
    return read(Config, values, source=source)


def to_toml(config: Config, *, section: str | None = None) -> str:
    """Write a configuration, or a section of it, with what each field means; `load` reads it back equal."""
    if section is None:
        return "\n".join(line for name in Config.model_fields for line in _lines(name, getattr(config, name)))
    part: Any = config
    for name in section.split("."):
        part = getattr(part, name, None) if isinstance(part, Section) else None
    if not isinstance(part, Section):
        raise ConfigError(f"no section {section!r}; there are {', '.join(_sections(config))}")
    return "\n".join(_lines(section, part))


def _sections(of: Section, within: str = "") -> Iterator[str]:
    for name in type(of).model_fields:
        if isinstance(part := getattr(of, name), Section):
            yield within + name
            yield from _sections(part, f"{within}{name}.")


def _lines(name: str, section: Section) -> Iterator[str]:
    """Write the fields of a section, then its own sections: TOML wants them in this order."""
    yield from _comment(type(section).__doc__)
    yield f"[{name}]"
    inner = []
    for field, about in type(section).model_fields.items():
        value = getattr(section, field)
        if isinstance(value, Section):
            inner.append((f"{name}.{field}", value))
            continue
        yield from _comment(about.description)
        yield f"# {field} = (not set)" if value is None else f"{field} = {_value(value)}"
    yield ""
    for place, part in inner:
        yield from _lines(place, part)


def _comment(text: str | None) -> Iterator[str]:
    return (f"# {line.strip()}" for line in (text or "").strip().splitlines() if line.strip())


def _value(value: Any) -> str:
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)  # TOML's strings are JSON's
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


def _laid_over(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    both = {name: _laid_over(base.get(name, {}), value) for name, value in values.items() if isinstance(value, dict)}
    return base | values | both


def with_options(config: Config, **sections: dict[str, Any]) -> Config:
    """Put options of the command line, those that are not None, over a configuration."""
    values = config.model_dump(exclude_unset=True)  # what was not set may still be chosen by what is known of a model
    for section, options in sections.items():
        given = {name: value for name, value in options.items() if value is not None}
        values[section] = values.get(section, {}) | given
    return parse(values, source="options")
