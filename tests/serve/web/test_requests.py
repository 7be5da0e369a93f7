from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tanbr.serve.web import requests


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (requests.ClassifyRequest, {"inputs": [1] * 10_000, "labels": [2] * 10_000}),
        (requests.ClassifyRequest, {"inputs": [[1] * 100] * 100}),
        (requests.FeedbackRequest, {"feedback": [{}] * 10_000}),
        (requests.CompletionRequest, {"model": "a", "prompt": [1] * 10_000}),
        (requests.PinRequest, {"blend": ["x"] * 10_000}),
    ],
)
def test_only_the_first_wrong_item_of_a_list_is_reported(kind: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(body)
    assert refused.value.error_count() <= 2  # one for each list, or for each field of the first item
