import math

import pytest
from pydantic import ValidationError

from tanbr.config import Section, read
from tanbr.errors import ConfigError


class Inner(Section):
    """Some settings."""

    width: int = 3
    """How wide."""
    height: float = 1.0
    """How high."""
    steps: tuple[tuple[float, ...], ...] = ()
    """What comes when."""


class Outer(Section):
    """Settings in sections."""

    inner: Inner = Inner()
    """The inner ones."""


def test_what_is_given_is_laid_over_the_defaults() -> None:
    assert read(Outer, {}).inner.width == 3
    assert read(Outer, {"inner": {"width": 5, "height": 2, "steps": [[1], [2, 3]]}}).inner == Inner(
        width=5, height=2.0, steps=((1.0,), (2.0, 3.0))
    )


def test_settings_are_documented_and_cannot_be_changed() -> None:
    assert Inner.model_fields["width"].description == "How wide."
    with pytest.raises(ValidationError, match="frozen"):
        Inner().width = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"inner": {"widht": 1}}, "here: unknown key 'inner.widht'; did you mean 'width'?"),
        ({"colour": 1}, "here: unknown key 'colour'; known keys: inner"),
        ({"inner": {"width": True}}, r"here: inner.width: Input should be a valid integer \(got True\)"),
        ({"inner": {"width": 3.0}}, r"here: inner.width: Input should be a valid integer \(got 3.0\)"),
        ({"inner": {"height": math.inf}}, r"here: inner.height: Input should be a finite number \(got inf\)"),
        ({"inner": {"height": math.nan}}, r"here: inner.height: Input should be a finite number \(got nan\)"),
        ({"inner": {"steps": [[1.0], [True]]}}, r"here: inner.steps.1.0: Input should be a valid number \(got True\)"),
        ({"inner": {"width": "x" * 999}}, r"here: inner.width: Input should be a valid integer.* \(got 'xxx.{,40}\)$"),
    ],
)
def test_a_mistake_is_one_sentence(values, says) -> None:
    with pytest.raises(ConfigError, match=says):
        read(Outer, values, source="here")
