import json

import pytest

from tanbr.serve.web.refusals import Refusal, invalid


def test_a_refusal_is_json_as_openais_clients_read_it() -> None:
    refusal = Refusal(400, "no", param="inputs")
    assert json.loads(refusal.body()) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "inputs", "code": "bad_request"}
    }
    assert json.loads(Refusal(503, "later").body())["error"]["type"] == "server_error"


def test_what_may_be_sent_again_says_when_in_whole_seconds() -> None:
    assert Refusal.later(429, "slowly", seconds=0.2).response().headers["retry-after"] == "1"
    assert Refusal.later(429, "slowly", seconds=2.1).response().headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ({"type": "missing", "loc": ("body", "inputs"), "msg": ""}, "inputs is missing"),
        ({"type": "missing", "loc": ("body",), "msg": ""}, "the body is missing"),
        (
            {"type": "extra_forbidden", "loc": ("body", "inputs", 3, "colour"), "msg": ""},
            "inputs[3].colour is not known here",
        ),
    ],
)
def test_the_first_problem_is_one_sentence(problem, says) -> None:
    refusal = invalid([problem])
    assert (refusal.status_code, refusal.detail) == (422, says)
