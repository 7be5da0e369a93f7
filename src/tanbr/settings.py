"""The whole configuration: one section a stage, read from TOML, where an unknown key is an error."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field

from tanbr.config import Section, read
from tanbr.errors import ConfigError
from tanbr.monitor.config import MonitorConfig
from tanbr.router.config import RouterConfig
from tanbr.serve.config import ServeConfig
from tanbr.serve.web.config import HttpConfig
from tanbr.train.config import FinetuneConfig, PretrainConfig


class Config(Section):
    """Every default of the project."""

    router: RouterConfig = Field(default_factory=RouterConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    pretrain: PretrainConfig = Field(default_factory=PretrainConfig)
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)
    http: HttpConfig = Field(default_factory=HttpConfig)


def load(path: str | Path | None) -> Config:
    """Read a TOML file, or take the defaults if there is none; anything wrong in it is one `ConfigError`."""
    if path is None:
        return Config()
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return parse(values, source=str(path))


def parse(values: dict[str, Any], *, source: str = "configuration") -> Config:
    """Build a `Config` from nested dictionaries; anything wrong in them is one `ConfigError`."""
    return read(Config, values, source=source)


def with_options(config: Config, **sections: dict[str, Any]) -> Config:
    """Put options of the command line, those that are not None, over a configuration."""
    values = config.model_dump(exclude_unset=True)  # what was not set may still be chosen by what is known of a model
    for section, options in sections.items():
        given = {name: value for name, value in options.items() if value is not None}
        values[section] = values.get(section, {}) | given
    return parse(values, source="options")
