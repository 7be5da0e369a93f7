from pathlib import Path

import pytest
from pydantic import BaseModel

from tanbr import settings
from tanbr.errors import ConfigError
from tanbr.settings import Config


def test_the_defaults_are_complete_and_every_field_says_what_it_is() -> None:
    def check(section: type[BaseModel]) -> None:
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                check(field.annotation)
            else:
                assert field.description, f"{section.__name__}.{name} has no docstring"

    Config()
    check(Config)


def test_a_file_overrides_only_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[pretrain]\nsteps = 7\n")
    loaded = settings.load(tmp_path / "t.toml")
    assert loaded.pretrain.steps == 7
    assert loaded.pretrain.model_copy(update={"steps": Config().pretrain.steps}) == Config().pretrain
    assert loaded.router == Config().router


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pretrain]\nstep = 7", "unknown key 'pretrain.step'; did you mean 'steps'"),
        ("[nonsense]\na = 1", "unknown key 'nonsense'; known keys: router"),
        ("[pretrain]\nsteps = 0", "pretrain.steps.*greater than or equal to 1.*got 0"),
        ("[pretrain]\nsteps = 'many'", "pretrain.steps"),
        ("[pretrain", "is not TOML"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        settings.load(tmp_path / "t.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        settings.load(tmp_path / "none.toml")
