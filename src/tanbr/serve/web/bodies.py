"""What every body of a request has in common; each route has the fields of its own.

Models of bodies are made with the app, because limits, labels and tasks are the running server's: pydantic then checks
them, and the OpenAPI document names them. Every list stops at its first wrong item (`fail_fast`): half a million
mistakes are not worth listing.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetPydanticSchema, model_validator
from pydantic_core import PydanticCustomError, core_schema

MOST_KEYS = 32  # of one object: no request has so many, and each that is not known is another mistake to write down


class Sent(BaseModel):
    """A body: no value is converted, and a key that is not known is refused."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, frozen=True
    )

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_KEYS:
            raise PydanticCustomError("keys", f"must have at most {MOST_KEYS} keys")
        return value


def one_of(names: Sequence[str]) -> GetPydanticSchema:
    """Annotate a text that must be one of these."""
    return GetPydanticSchema(lambda _source, _handler: core_schema.literal_schema(list(names)))


def listed(either: Any, *, one: Callable[[str], Any] = str) -> BeforeValidator:
    """Annotate a list so that a text may stand for a list of `one`; `either` is the type that the document shows."""
    return BeforeValidator(
        lambda value: [one(value)] if isinstance(value, str) else value, json_schema_input_type=either
    )
