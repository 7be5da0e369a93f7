import pytest
from pydantic import ValidationError

from tanbr.config import Section, read
from tanbr.errors import ConfigError


class Inner(Section):
    """Some settings."""

    width: int = 3
    """How wide."""


class Outer(Section):
    """Settings in sections."""

    inner: Inner = Inner()
    """The inner ones."""


def test_what_is_given_is_laid_over_the_defaults() -> None:
    assert read(Outer, {}).inner.width == 3
    assert read(Outer, {"inner": {"width": 5}}).inner.width == 5


def test_settings_are_documented_and_cannot_be_changed() -> None:
    assert Inner.model_fields["width"].description == "How wide."
    with pytest.raises(ValidationError, match="frozen"):
        Inner().width = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"inner": {"widht": 1}}, "here: unknown key 'inner.widht'; did you mean 'width'?"),
        ({"colour": 1}, "here: unknown key 'colour'; known keys: inner"),
        ({"inner": {"width": "x" * 999}}, r"here: inner.width: Input should be a valid integer.* \(got 'xxx.{,40}\)$"),
    ],
)
def test_a_mistake_is_one_sentence(values, says) -> None:
    with pytest.raises(ConfigError, match=says):
        read(Outer, values, source="here")
