"""What the store keeps, row by row, and how vectors are written in it."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanbr.errors import StateError
from tanbr.types import FloatArray, to_jsonable


@dataclass(frozen=True, eq=False)
class RequestRow:
    """One answered request."""

    id: bytes
    version: int
    time: float
    posterior: FloatArray  # (V,)
    logits: FloatArray | None  # (columns,)
    text: Any  # JSON-able, None unless texts are kept
    novel: bool = False  # unlike any known task


@dataclass(frozen=True)
class FeedbackRow:
    """One piece of feedback, checked and scored."""

    id: bytes
    source: str
    task: int | None
    reward: float
    client: str = ""


def shown(values: FloatArray) -> str:
    """Write a vector as the store does: JSON, NaN as null."""
    return json.dumps(to_jsonable(values))


def vector(text: str) -> FloatArray:
    """Read a vector back."""
    try:
        values = np.array([np.nan if value is None else value for value in json.loads(text)], dtype=np.float64)
    except (ValueError, TypeError, RecursionError) as error:
        raise StateError(f"the store holds {str(text)[:40]!r} where a vector belongs ({error})") from None
    values.setflags(write=False)
    return values


def floats(blob: bytes) -> FloatArray:
    """Read a vector that was kept as bytes, in half the digits."""
    return np.frombuffer(blob, dtype=np.float32).astype(np.float64)
